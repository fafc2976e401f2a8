// Portable: vectors of four floats that every C compiler with GCC vector extensions can lower.
#define PB_ISA 0
#define VW 4
#define MR 4
#define LEVEL_NAME "generic"
#define LEVEL_TABLE pb_level_generic
#include "level.h"
