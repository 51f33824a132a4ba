#include "pool.h"

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#endif

namespace octavo {

static inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

static constexpr int kSpins = 4000;  // some tens of microseconds

void Barrier::wait() {
  if (threads_ == 1) return;
  const uint32_t turn = turn_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    turn_.store(turn + 1, std::memory_order_seq_cst);
    if (asleep_.load(std::memory_order_seq_cst)) {
      std::lock_guard<std::mutex> lock(mutex_);
      wake_.notify_all();
    }
    return;
  }
  for (int i = 0; i < kSpins; ++i) {
    if (turn_.load(std::memory_order_acquire) != turn) return;
    relax();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  asleep_.fetch_add(1, std::memory_order_seq_cst);
  wake_.wait(lock, [&] { return turn_.load(std::memory_order_seq_cst) != turn; });
  asleep_.fetch_sub(1, std::memory_order_relaxed);
}

namespace {

// The cores that this process may use, read once, before any thread is pinned.
class Cores {
 public:
#ifdef __linux__
  Cores() { known_ = sched_getaffinity(0, sizeof all_, &all_) == 0; }
  int count() const { return known_ ? CPU_COUNT(&all_) : 0; }
  // The calling thread to the index-th of them. Best effort.
  void pin(int index) const {
    int seen = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &all_) || seen++ != index) continue;
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      pthread_setaffinity_np(pthread_self(), sizeof one, &one);
      return;
    }
  }
  void unpin() const { pthread_setaffinity_np(pthread_self(), sizeof all_, &all_); }

 private:
  cpu_set_t all_;
  bool known_;
#else
  int count() const { return 0; }
  void pin(int) const {}
  void unpin() const {}
#endif
};

const Cores& cores() {
  static const Cores cores;
  return cores;
}

}  // namespace

// Threads that wait for each other must not share a core while another is free; the system's scheduler puts a thread
// that is woken on the core of the one that woke it. With fewer threads than cores they stay free to move.
Pool::Pool(int threads, bool pin) : size_(threads < 1 ? 1 : threads), pin_(pin && cores().count() == size_) {
  barrier_.resize(size_);
  for (int i = 1; i < size_; ++i) {
    threads_.emplace_back([this, i] {
      if (pin_) cores().pin(i);
      loop(i);
    });
  }
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Pool::loop(int thread) {
  uint64_t seen = 0;
  for (;;) {
    const std::function<void(int)>* job;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      start_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (stop_) return;
      seen = round_;
      job = job_;
    }
    (*job)(thread);
    std::lock_guard<std::mutex> lock(mutex_);
    if (--running_ == 0) done_.notify_one();
  }
}

void Pool::run(const std::function<void(int)>& fn) {
  if (size_ == 1) return fn(0);
  if (pin_) cores().pin(0);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    job_ = &fn;
    running_ = size_ - 1;
    ++round_;
  }
  start_.notify_all();
  fn(0);
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [&] { return running_ == 0; });
  lock.unlock();
  if (pin_) cores().unpin();  // the caller's own threads and children inherit its cores
}

void Pool::each(int count, const std::function<void(int)>& fn) {
  Counter next;
  run([&](int) {
    for (int i = next.take(); i < count; i = next.take()) fn(i);
  });
}

}  // namespace octavo
