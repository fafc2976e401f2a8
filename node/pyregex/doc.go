// Package pyregex matches the regular expressions of Python's re module (3.11) on text, with its results: look-around,
// back references, Unicode classes, the final $ before a line feed, and what empty matches do in sub and findall. Go's
// regexp has neither look-around nor back references. Reading order: parse.go, chars.go, groups.go, compile.go,
// search.go, template.go.
package pyregex
