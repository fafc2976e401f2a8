//go:build emulated && !race

// The AMX code path over portable512bf16: tiles are arrays.
#define PB_ISA 0
#define PB_SMALL_CODE
#define VW 16
#define MR 14
#define PB_DOT 1
#define PB_AMX
#define LEVEL portableamx
#define BELOW portable512
#define TWIN portable512bf16
#include "../kernels/level.h"
