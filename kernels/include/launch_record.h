// What this library launched, for whoever measures it: a profile names functions, but neither their launch
// configuration nor their strategy. Host code, without CUDA's or torch's headers.
//
// Builds hide all symbols but those marked visible, so each library has a record of its own. Its users see two C
// functions.
#pragma once

#include <atomic>
#include <cstdio>
#include <string>
#include <vector>

namespace kernels {

// The strings are not copied: literals.
struct LaunchRecord {
  const char* function;  // the name of the kernel's template
  const char* strategy;  // of a row kernel its plan's, else how blocks divide the work
  unsigned grid[3];
  unsigned block[3];
  unsigned cluster[3];
  long long shared_bytes;  // dynamic
  int stages;              // pipeline stages in shared memory, if any
};

// Threads that record. Other threads' launches look at nothing else, and neither make nor touch a record of their own.
inline std::atomic<int> recording_threads{0};

// What one thread launched.
class LaunchRecords {
 public:
  LaunchRecords() = default;
  LaunchRecords(const LaunchRecords&) = delete;
  ~LaunchRecords() { turn(false); }

  void turn(bool on) {
    if (on != on_) {
      recording_threads.fetch_add(on ? 1 : -1, std::memory_order_relaxed);
      on_ = on;
    }
    if (on) {
      launches_.clear();
    }
  }

  void add(const LaunchRecord& launch) {
    if (on_) {
      launches_.push_back(launch);
    }
  }

  const char* json() {
    json_ = "[";
    for (const LaunchRecord& launch : launches_) {
      json_ += json_.size() > 1 ? ",{\"function\":" : "{\"function\":";
      write(launch.function);
      json_ += ",\"strategy\":";
      write(launch.strategy);
      json_ += ",\"grid\":";
      write(launch.grid);
      json_ += ",\"block\":";
      write(launch.block);
      json_ += ",\"cluster\":";
      write(launch.cluster);
      json_ += ",\"shared_bytes\":" + std::to_string(launch.shared_bytes);
      json_ += ",\"stages\":" + std::to_string(launch.stages) + "}";
    }
    json_ += "]";
    return json_.c_str();
  }

 private:
  bool on_ = false;
  std::vector<LaunchRecord> launches_;
  std::string json_;

  void write(const char* text) {
    json_ += '"';
    for (; *text != '\0'; ++text) {
      const auto byte = static_cast<unsigned char>(*text);
      if (byte < 0x20) {
        char escaped[7];
        std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(byte));
        json_ += escaped;
        continue;
      }
      if (byte == '"' || byte == '\\') {
        json_ += '\\';
      }
      json_ += *text;
    }
    json_ += '"';
  }

  void write(const unsigned (&sizes)[3]) {
    json_ += '[' + std::to_string(sizes[0]) + ',' + std::to_string(sizes[1]) + ',' + std::to_string(sizes[2]) + ']';
  }
};

inline LaunchRecords& launches_of_this_thread() {
  thread_local LaunchRecords records;
  return records;
}

// Right after a launch, by the thread that launched.
inline void record_launch(const LaunchRecord& launch) {
  if (recording_threads.load(std::memory_order_relaxed) > 0) {
    launches_of_this_thread().add(launch);
  }
}

}  // namespace kernels

// Weak: every source that includes this defines them, called or not, and a library keeps one.
#define KERNELS_SHOWN __attribute__((weak, visibility("default")))

// From now on, what this thread launches is recorded, from nothing, or no longer. What was recorded stays until then.
extern "C" KERNELS_SHOWN void kernels_record_launches(int on) { kernels::launches_of_this_thread().turn(on != 0); }

// What this thread launched, as a list in JSON, valid until the thread asks again.
extern "C" KERNELS_SHOWN const char* kernels_recorded_launches() { return kernels::launches_of_this_thread().json(); }

#undef KERNELS_SHOWN
