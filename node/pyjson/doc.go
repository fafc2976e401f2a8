// Package pyjson reads, holds and writes values as Python's json module and text conversions do: dictionaries
// keep their order, integers keep all digits, and text is what repr, str, int and float make of a value. It knows
// nothing of workflows, nodes or files.
package pyjson
