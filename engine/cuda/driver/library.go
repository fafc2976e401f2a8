//go:build cgo

package driver

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

// Load opens the first usable version of a library among the candidates of s. It returns the handle of the loader, nil
// if there is none, and what it found. The library stays open.
func (d *Driver) Load(s *library.Search, l *library.Library) (unsafe.Pointer, Found) {
	var found Found
	version, runtime := C.CString(l.Version), (*C.char)(nil)
	defer C.free(unsafe.Pointer(version))
	if l.Runtime != "" {
		runtime = C.CString(l.Runtime)
		defer C.free(unsafe.Pointer(runtime))
	}
	out := C.int(0)
	if l.Out {
		out = 1
	}
	for _, path := range s.Candidates(l, d.version) {
		var handle unsafe.Pointer
		var number, cuda C.int
		var where [4096]C.char
		name := C.CString(path)
		err := try(func(e *C.pb_error) {
			C.pb_library_open(name, version, out, runtime, &handle, &number, &cuda, &where[0], e)
		})
		C.free(unsafe.Pointer(name))
		switch {
		case err == nil && int(cuda)/1000 > d.version/1000:
			err = fmt.Errorf("%s is for CUDA %d, the driver serves %d", C.GoString(&where[0]), cuda/1000, d.version/1000)
		case err == nil && int(number) >= l.Least:
			return handle, Found{Path: C.GoString(&where[0]), Version: l.Text(int(number))}
		case err == nil:
			err = fmt.Errorf("%s is version %s; %s is the least that is used", C.GoString(&where[0]), l.Text(int(number)),
				l.Text(l.Least))
		case !filepath.IsAbs(path): // the loader has none: nothing to report
			continue
		}
		if found.Err == nil {
			found.Err = err
		}
	}
	return nil, found
}
