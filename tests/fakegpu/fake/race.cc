#include "race.h"

#include <sys/mman.h>

#include <cstdio>

namespace race {

word words[64 << 10];
thread threads[1024];

namespace {

const uint64_t room = 1 << 20, near_by = 16;
const int blocks = 4;

// What blocks of a launch have used of 8 bytes of global memory: read, written.
struct cell {
  uint64_t at, launch;
  uint64_t by[2][blocks];
  uint8_t bytes[2][blocks];
};
cell* cells;

void stop(const char* what, const char* memory, uint64_t at, const char* of, uint64_t other) {
  char text[160];
  snprintf(text, sizeof text, "race: a thread %s: %s %llx, %s %llu", what, memory, (unsigned long long)at, of, (unsigned long long)other);
  fk::stop(text);
}

// find is the cell of 8 bytes, null where too many around it are taken.
cell* find(uint64_t at) {
  if (!cells) cells = (cell*)mmap(nullptr, (room + near_by) * sizeof(cell), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  cell* c = cells + at * 0x9e3779b97f4a7c15u % room;
  for (uint64_t i = 0; i < near_by; i++, c++) {
    if (c->launch != fk::counted.launches) {
      *c = {at, fk::counted.launches, {}, {}};
      return c;
    }
    if (c->at == at) return c;
  }
  return nullptr;
}

}  // namespace

void begin() {
  thread& me = threads[fk::self()->thread.x];
  me.block = me.warp = 1;
  me.group = 0;
  me.copies.clear();
}

void shared_race(const char* what, uint32_t at, int other) {
  stop(what, "shared byte", at, "thread", (uint64_t)other);
  __builtin_unreachable();
}

void global(uint64_t at, int bytes, bool writes) {
  const uint64_t block = fk::counted.blocks, last = at + bytes - 1;
  for (uint64_t g = at / 8; g <= last / 8; g++) {
    cell* c = find(g);
    if (!c) continue;
    int from = g == at / 8 ? (int)(at % 8) : 0, to = g == last / 8 ? (int)(last % 8) : 7;
    uint8_t mask = (uint8_t)((0xff << from) & (0xff >> (7 - to)));
    for (int written = writes ? 0 : 1; written < 2; written++)
      for (int i = 0; i < blocks; i++)
        if ((c->bytes[written][i] & mask) && c->by[written][i] != block)
          stop(!writes ? "reads what another block wrote" : written ? "writes what another block wrote" : "writes what another block read", "address", at,
               "block", c->by[written][i]);
    for (int i = 0; i < blocks; i++) {
      if (c->bytes[writes][i] && c->by[writes][i] != block) continue;
      c->by[writes][i] = block;
      c->bytes[writes][i] |= mask;
      break;
    }
  }
}

}  // namespace race
