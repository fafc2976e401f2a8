// Portable: vectors of four floats that every C compiler with GCC vector extensions can lower.
#if defined(PB_RACE) && defined(__x86_64__)
// Under the race detector a processor with AVX2 computes with that level: half the time to compile.
#define PB_SMALL_CODE
#pragma GCC optimize("O1")
#endif
#define PB_ISA 0
#define VW 4
#define MR 4
#define LEVEL generic
#include "level.h"
