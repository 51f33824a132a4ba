// Threads that run one function together, step by step.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace octavo {

// All threads wait here for each other: a short spin, then asleep, so that a neighbour gets the core.
class Barrier {
 public:
  void resize(int threads) { threads_ = threads; }
  void wait();

 private:
  int threads_ = 1;
  std::atomic<int> arrived_{0};
  std::atomic<uint32_t> turn_{0};
  std::atomic<int> asleep_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

// Indexes handed out one by one, so that a thread held up by a neighbour gets fewer.
class Counter {
 public:
  void reset() { next_.store(0, std::memory_order_relaxed); }
  int take() { return next_.fetch_add(1, std::memory_order_relaxed); }

 private:
  alignas(64) std::atomic<int> next_{0};
};

// The calling thread and `size() - 1` others. Between calls of `run` the others sleep.
class Pool {
 public:
  explicit Pool(int threads, bool pin);
  ~Pool();
  int size() const { return size_; }
  // fn(thread) on every thread; returns when all have returned. An exception must not leave fn.
  void run(const std::function<void(int)>& fn);
  // fn(i) for 0 <= i < count, each once, in any order.
  void each(int count, const std::function<void(int)>& fn);
  Barrier& barrier() { return barrier_; }

 private:
  void loop(int thread);

  int size_;
  bool pin_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable start_, done_;
  const std::function<void(int)>* job_ = nullptr;
  uint64_t round_ = 0;
  int running_ = 0;
  bool stop_ = false;
  Barrier barrier_;
};

}  // namespace octavo
