// The threads of one step. They stay together from its first layer to its last: an OpenMP region a loop would
// cost several microseconds. A loop is over when its tasks are done, not when all threads have come: one that
// has lost its core to another process holds up nobody unless it lost it in the middle of a task, and finds
// its way back by counting loops.
#pragma once
#include <omp.h>
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

    // Calls task(i) once for each i < count, on all threads; when it returns, all are done. Every thread of
    // the team must call it. Each has a contiguous share, which it reads as one stream, and then helps others.
    template <class Task>
    void each(int count, Task task) {
        if (count == 0) return;
        const int me = omp_get_thread_num();
        const uint32_t loop = members_[me].loop++;
        for (int turn = 0; turn < size_; ++turn) {
            const int owner = (me + turn) % size_;
            const int begin = int(int64_t(count) * owner / size_), end = int(int64_t(count) * (owner + 1) / size_);
            int finished = 0;
            for (int i; (i = begin + take(owner, loop, end - begin)) < end; ++finished) task(i);
            if (finished && done_.fetch_add(finished, std::memory_order_acq_rel) + finished == count) finish(loop);
        }
        wait_for_end(loop);
    }

    int size() const { return size_; }

   private:
    static constexpr int SPINS = 2000;  // some 30 us; then the core may have a better use

    struct alignas(64) Member {
        std::atomic<uint64_t> taken{0};  // of its share: the loop in the upper half, how many in the lower
        uint32_t loop = 0;               // that it comes to next; its own
    };

    explicit Team(int size) : size_(size), members_(size) {}

    // The next of the owner's tasks in this loop, or `count` if none is left or the loop is over.
    int take(int owner, uint32_t loop, int count) {
        std::atomic<uint64_t>& taken = members_[owner].taken;
        uint64_t seen = taken.load(std::memory_order_acquire);
        while (uint32_t(seen >> 32) == loop && int(uint32_t(seen)) < count) {
            if (taken.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire)) return int(uint32_t(seen));
        }
        return count;
    }

    void finish(uint32_t loop) {
        done_.store(0, std::memory_order_relaxed);
        for (Member& member : members_) member.taken.store(uint64_t(loop + 1) << 32, std::memory_order_release);
        current_.store(loop + 1, std::memory_order_release);
        current_.notify_all();
    }

    void wait_for_end(uint32_t loop) {
        for (int spins = 0; spins < SPINS; ++spins) {
            if (current_.load(std::memory_order_acquire) > loop) return;
            relax();
        }
        for (uint32_t seen; (seen = current_.load(std::memory_order_acquire)) <= loop;) current_.wait(seen);
    }

    int size_;
    std::vector<Member> members_;
    alignas(64) std::atomic<int> done_{0};
    alignas(64) std::atomic<uint32_t> current_{0};  // the loop under way
};
