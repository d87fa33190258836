"""How long a call takes: timers, when to stop sampling, what a launch costs, the device's state.

``stopwatch.Stopwatch`` times a call as ``settings.TimingSettings`` say.
"""
