//go:build emulated && !race

// The AMX code path over portable512bf16: tiles are arrays.
#define PB_ISA 0
#define PB_SMALL_CODE
#define VW 16
#define MR 14
#define PB_DOT 1
#define PB_AMX
#define UKRS_BELOW pb_ukrs_portable512
#define UKRS pb_ukrs_portable512bf16
#define LEVEL_NAME "portableamx"
#define LEVEL_TABLE pb_level_portableamx
#include "../kernels/level.h"
