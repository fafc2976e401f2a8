package parallel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"patchbay/fault"
	"patchbay/parallel/request"
)

// failReads makes reads of a file that this process has open fail, while its size and time stay: its descriptors become
// some that may only be written. The function that it returns undoes that.
func failReads(path string) (undo func() error, err error) {
	bad, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = bad.Close() }()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	var fds []int
	for _, e := range list {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if fd, no := strconv.Atoi(e.Name()); err == nil && no == nil && target == path && fd != int(bad.Fd()) {
			fds = append(fds, fd)
		}
	}
	var undone []func() error
	for _, fd := range fds {
		kept, err := syscall.Dup(fd)
		if err != nil {
			return nil, err
		}
		if err := syscall.Dup3(int(bad.Fd()), fd, syscall.O_CLOEXEC); err != nil {
			return nil, err
		}
		undone = append(undone, func() error {
			return errors.Join(syscall.Dup3(kept, fd, syscall.O_CLOEXEC), syscall.Close(kept))
		})
	}
	if len(undone) == 0 {
		return nil, fmt.Errorf("%s is not open", path)
	}
	return func() (err error) {
		for _, f := range undone {
			err = errors.Join(err, f())
		}
		return err
	}, nil
}

// TestDiskFailsUnderStreams lets a disk fail in the middle of a step that reads blocks from the model file: the request
// fails with file_changed, which names file, byte and cause. Once the disk works again, the same weights give the right
// picture in the same pool.
func TestDiskFailsUnderStreams(t *testing.T) {
	written := modelFiles(t)
	e, r := newEngine(t), tinyRequest(t, "flux", 1, 9, 8, 3)
	for _, plan := range []string{
		"stream=on", "ulysses=2,stream=4", "pipe=2,patches=2,stream=3", "ulysses=2,shard=on,stream=on",
	} {
		t.Run(plan, func(t *testing.T) {
			path, m := written()
			m.Spec = r.Model.Spec
			of := *r
			of.Model, of.Plan = m, plan
			want, err := e.Sample(context.Background(), &of, nil)
			if err != nil {
				t.Fatal(err)
			}
			var undo func() error
			step, ended := 0, false
			_, err = e.Sample(context.Background(), &of, func(p request.Progress) (err error) {
				if step, ended = p.Step, p.Step == p.Steps; step == 1 {
					undo, err = failReads(path)
				}
				return err
			})
			if undo == nil {
				t.Fatal(err)
			}
			if err := undo(); err != nil {
				t.Fatal(err)
			}
			if !fault.Is(err, fault.FileChanged) || ended || !strings.Contains(err.Error(), path+": at byte ") ||
				!strings.Contains(err.Error(), syscall.EBADF.Error()) {
				t.Errorf("after step %d: %v, want file_changed with %s, the byte and EBADF", step, err, path)
			}
			again, err := e.Sample(context.Background(), &of, nil)
			if err != nil {
				t.Fatal(err)
			}
			if at := firstDifference(again.Latent.Data, want.Latent.Data); at >= 0 {
				t.Errorf("on a disk that works again, element %d differs", at)
			}
		})
	}
}
