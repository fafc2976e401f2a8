// What finds races that the order of the fibres hides, in kernels that were translated from PTX. Every access of shared memory is compared with the last
// ones of other threads: between them lies a barrier of the block, or of the warp, and a copy has landed for its thread before others may look. Every access
// of global memory is compared with those of other blocks of the launch, which nothing orders. A race ends the launch.
//
// Shared memory is watched in words of 4 bytes, so threads that write different bytes of one word are reported too. Of global memory, the first four blocks that
// read and that wrote any of 8 bytes are known.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "fibre.h"

namespace race {

// The last accesses of a word of shared memory, and when: barriers of the block and of the warp that their threads had passed.
struct word {
  uint64_t block;  // in which; another one: none yet
  int writer, reader;
  uint32_t writer_block, writer_warp, reader_block, reader_warp;
  bool threads, warps;  // several have read
  int flying;           // copies under way
};

struct thread {
  uint32_t block, warp;  // barriers passed
  int group;             // of copies that collects now
  std::vector<std::pair<int, uint32_t>> copies;
};

extern word words[64 << 10];
extern thread threads[1024];

void begin();  // a thread of a block begins
[[noreturn]] void shared_race(const char* what, uint32_t at, int other);

inline word& word_of(uint32_t i) {
  word& w = words[i];
  if (w.block != fk::counted.blocks) w = {fk::counted.blocks, -1, -1, 0, 0, 0, 0, false, false, 0};
  return w;
}

// unordered reports whether an access of another thread has no barrier behind it.
inline bool unordered(int other, uint32_t block, uint32_t warp, int t) {
  return other >= 0 && other != t && block == threads[t].block && (other / 32 != t / 32 || warp == threads[t].warp);
}

inline void read(uint32_t at, int bytes) {
  int t = fk::self()->thread.x;
  const thread& me = threads[t];
  for (uint32_t i = at / 4; i <= (at + bytes - 1) / 4; i++) {
    word& w = word_of(i);
    if (w.flying) shared_race("reads what an asynchronous copy may still write", at, w.writer);
    if (unordered(w.writer, w.writer_block, w.writer_warp, t)) shared_race("reads what another thread wrote without a barrier", at, w.writer);
    if (w.reader < 0 || w.reader_block != me.block) {
      w.reader = t;
      w.reader_block = me.block;
      w.reader_warp = me.warp;
      w.threads = w.warps = false;
      continue;
    }
    w.threads |= w.reader != t;
    w.warps |= w.reader / 32 != t / 32;
    if (w.reader / 32 == t / 32) w.reader_warp = me.warp;
  }
}

inline void write(uint32_t at, int bytes, bool copy = false) {
  int t = fk::self()->thread.x;
  const thread& me = threads[t];
  for (uint32_t i = at / 4; i <= (at + bytes - 1) / 4; i++) {
    word& w = word_of(i);
    if (w.flying && !copy) shared_race("writes where an asynchronous copy may still write", at, w.writer);
    if (unordered(w.writer, w.writer_block, w.writer_warp, t)) shared_race("writes what another thread wrote without a barrier", at, w.writer);
    if (w.reader >= 0 && w.reader_block == me.block &&
        (w.warps || w.reader / 32 != t / 32 || ((w.threads || w.reader != t) && w.reader_warp == me.warp)))
      shared_race("writes what another thread read without a barrier", at, w.reader);
    w.writer = t;
    w.writer_block = me.block;
    w.writer_warp = me.warp;
  }
}

inline void issued(uint32_t at) {
  write(at, 16, true);
  thread& me = threads[fk::self()->thread.x];
  for (uint32_t i = at / 4; i < at / 4 + 4; i++) word_of(i).flying++;
  me.copies.push_back({me.group, at});
}

// landed is after a wait that leaves so many groups under way. What has landed was written by the thread that waited.
inline void landed(int left) {
  int t = fk::self()->thread.x;
  thread& me = threads[t];
  size_t open = 0;
  for (auto& c : me.copies) {
    if (c.first >= me.group - left) {
      me.copies[open++] = c;
      continue;
    }
    for (uint32_t i = c.second / 4; i < c.second / 4 + 4; i++) {
      word& w = word_of(i);
      w.flying--;
      w.writer = t;
      w.writer_block = me.block;
      w.writer_warp = me.warp;
    }
  }
  me.copies.resize(open);
}

// global is an access of global memory.
void global(uint64_t at, int bytes, bool writes);

}  // namespace race
