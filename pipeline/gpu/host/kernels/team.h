// The threads of one step. They stay together from its first layer to its last and meet after every loop,
// which costs well under a microsecond; an OpenMP region a loop would cost several.
#pragma once
#include <omp.h>
#include <sched.h>
#include <atomic>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
inline void relax() { _mm_pause(); }
#else
inline void relax() {}
#endif

class Team {
   public:
    // Runs body(team) on `wanted` threads, or as many as there are.
    template <class Body>
    static void run(int wanted, Body body) {
        Team team(wanted);
#pragma omp parallel num_threads(wanted)
        {
#pragma omp single
            team.size_ = omp_get_num_threads();
            body(team);
        }
    }

    // Calls task(i) once for each i < count, on all threads; returns when all are done. Every thread of the
    // team must call it. Each has a contiguous share, which it reads as one stream, and then helps the others.
    template <class Task>
    void each(int count, Task task) {
        const int me = omp_get_thread_num();
        for (int turn = 0; turn < size_; ++turn) {
            const int owner = (me + turn) % size_;
            const int begin = int(int64_t(count) * owner / size_), end = int(int64_t(count) * (owner + 1) / size_);
            for (int i; (i = begin + taken_[owner].value.fetch_add(1, std::memory_order_relaxed)) < end;) task(i);
        }
        meet();
    }

    int size() const { return size_; }

   private:
    static constexpr int SPINS = 4000;  // about 50 us; then the core may have a better use

    struct alignas(64) Count { std::atomic<int> value{0}; };

    explicit Team(int size) : size_(size), taken_(size) {}

    void meet() {
        const int epoch = epoch_.value.load(std::memory_order_relaxed);
        if (arrived_.value.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
            for (Count& taken : taken_) taken.value.store(0, std::memory_order_relaxed);
            arrived_.value.store(0, std::memory_order_relaxed);
            epoch_.value.store(epoch + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; epoch_.value.load(std::memory_order_acquire) == epoch; ++spins) {
            if (spins < SPINS) relax();
            else sched_yield();
        }
    }

    int size_;
    std::vector<Count> taken_;
    Count arrived_, epoch_;
};
