//go:build cgo

package cuda

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"path/filepath"
	"unsafe"

	"patchbay/engine/cuda/library"
)

// Library opens a library where it is found first in a version that can be used, and tells of it.
func (d *Driver) Library(s *library.Search, l *library.Library) Found {
	_, found := d.open(s, l)
	return found
}

// open is Library with the handle of the loader, nil where there is no library. It stays open.
func (d *Driver) open(s *library.Search, l *library.Library) (unsafe.Pointer, Found) {
	var found Found
	version := C.CString(l.Version)
	defer C.free(unsafe.Pointer(version))
	out := C.int(0)
	if l.Out {
		out = 1
	}
	for _, path := range s.Candidates(l, d.version) {
		var handle unsafe.Pointer
		var number C.int
		var where [4096]C.char
		name := C.CString(path)
		err := try(func(e *C.pb_error) { C.pb_library_open(name, version, out, &handle, &number, &where[0], e) })
		C.free(unsafe.Pointer(name))
		switch {
		case err == nil && int(number) >= l.Least:
			return handle, Found{Path: C.GoString(&where[0]), Version: l.Text(int(number))}
		case err == nil:
			err = fmt.Errorf("%s is version %s; %s is the least that is used", C.GoString(&where[0]), l.Text(int(number)),
				l.Text(l.Least))
		case !filepath.IsAbs(path): // the loader has none: nothing to tell
			continue
		}
		if found.Err == nil {
			found.Err = err
		}
	}
	return nil, found
}
