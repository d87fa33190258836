import sys,os
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
sys.path.insert(0,'.')
from tests.pipeline.test_ui import CHROMIUM, DRIVER, FLAGS
os.environ |= {"SE_OFFLINE": "true", "SE_AVOID_STATS": "true"}
o=webdriver.ChromeOptions(); o.binary_location=CHROMIUM or ""
for f in FLAGS: o.add_argument(f)
d=webdriver.Chrome(options=o, service=Service(DRIVER))
d.set_window_size(1300,1600)
d.get("file:///tmp/rep/new/report.html"); d.save_screenshot("/tmp/rep/s1.png")
d.execute_script("location.hash='#matmul'"); import time; time.sleep(1); d.save_screenshot("/tmp/rep/s2.png")
d.execute_script("document.querySelectorAll('#matmul details').forEach(e=>e.open=true); document.querySelector('#matmul .every').scrollIntoView()"); time.sleep(1); d.save_screenshot("/tmp/rep/s3.png")
d.execute_script("document.querySelectorAll('#against-the-field details')[2].open=true; document.querySelectorAll('#against-the-field details')[2].scrollIntoView()"); time.sleep(1); d.save_screenshot("/tmp/rep/s4.png")
d.get("file:///tmp/rep/new/plots/matmul.svg"); time.sleep(1); d.save_screenshot("/tmp/rep/s5.png")
print(d.get_log("browser") if False else "")
d.quit()
