package media

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"patchbay/fault"
)

// Install is the command that installs what this package runs.
const Install = "apt-get install ffmpeg"

// Lack says what is missing and how to install it, and is empty if ffmpeg and ffprobe are there.
func Lack() string {
	for _, program := range []string{"ffmpeg", "ffprobe"} {
		if _, err := exec.LookPath(program); err != nil {
			return "the program " + program + " is not installed; install ffmpeg: " + Install
		}
	}
	return ""
}

// Version returns the first words of what ffmpeg says of itself, or an error.
func Version(ctx context.Context) (string, error) {
	var b bytes.Buffer
	c := child{program: "ffmpeg", args: []string{"-version"}, take: func(r io.Reader) error {
		_, err := b.ReadFrom(r)
		return err
	}}
	err := c.run(ctx)
	text, _, _ := strings.Cut(b.String(), " Copyright")
	return text, err
}

// child is one run of a program.
type child struct {
	program string
	args    []string
	given   []given               // its descriptors from 3 on
	take    func(io.Reader) error // reads what the program prints; nil: nothing is read
}

// given is a descriptor that a program gets: a file, or the end of a pipe that feed writes to.
type given struct {
	file *os.File
	feed func(io.Writer) error
}

// file gives the program a file and returns its name there.
func (c *child) file(f *os.File) string {
	c.given = append(c.given, given{file: f})
	return "file:/dev/fd/" + strconv.Itoa(2+len(c.given))
}

// pipe gives the program a pipe and returns its name there.
func (c *child) pipe(feed func(io.Writer) error) string {
	c.given = append(c.given, given{feed: feed})
	return "pipe:" + strconv.Itoa(2+len(c.given))
}

// lastLines is how many lines of a program that failed an error has.
const lastLines = 6

// run starts the program, feeds it and waits for its end. It is killed when ctx ends, or when feeding or reading fails.
// Its error is that of ctx, or says how the program ended, with its last lines.
func (c *child) run(ctx context.Context) error {
	path, err := exec.LookPath(c.program)
	if err != nil {
		return fault.Named(fault.BadInput, "", "%s", Lack())
	}
	ctx, kill := context.WithCancelCause(ctx)
	defer kill(nil)
	cmd := exec.CommandContext(ctx, path, c.args...)
	cmd.Dir, cmd.WaitDelay = "/", 10*time.Second
	// No more of the environment: FFREPORT has ffmpeg write a file, AV_LOG_FORCE_COLOR colours the lines.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LD_LIBRARY_PATH=" + os.Getenv("LD_LIBRARY_PATH"), "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a signal from a terminal is for the worker
	var said tail
	cmd.Stderr = &said
	var out io.ReadCloser
	if c.take != nil {
		if out, err = cmd.StdoutPipe(); err != nil {
			return err
		}
	}
	var theirs, ours []*os.File // the ends of the pipes
	for _, g := range c.given {
		if g.file == nil && err == nil {
			var w *os.File
			if g.file, w, err = os.Pipe(); err == nil {
				theirs, ours = append(theirs, g.file), append(ours, w)
			}
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, g.file)
	}
	if err == nil {
		err = cmd.Start()
	}
	closeAll(theirs)
	if err != nil {
		closeAll(ours)
		return fmt.Errorf("start %s: %w", c.program, err)
	}
	fed := make(chan struct{}, len(ours))
	for _, g := range c.given {
		if g.feed == nil {
			continue
		}
		w := ours[0]
		ours = ours[1:]
		go func() {
			err := errors.Join(g.feed(w), w.Close())
			if err != nil && !errors.Is(err, syscall.EPIPE) {
				kill(err)
			}
			fed <- struct{}{}
		}()
	}
	var took error
	if c.take != nil {
		if took = c.take(out); took != nil {
			kill(took)
		}
	}
	// A program that ends closes its ends of the pipes, which ends those who write to them.
	ended := cmd.Wait()
	for range cap(fed) {
		<-fed
	}
	switch cause := context.Cause(ctx); {
	case took != nil && !errors.Is(took, io.ErrUnexpectedEOF):
		return took
	case cause != nil:
		return cause
	case ended != nil:
		return fmt.Errorf("%s ended with %w: %s", c.program, ended, said.String())
	}
	return took
}

func closeAll(list []*os.File) {
	for _, f := range list {
		_ = f.Close() // nothing was written to it
	}
}

// tail keeps the end of what a program writes to stderr.
type tail struct{ b []byte }

func (t *tail) Write(b []byte) (int, error) {
	const most = 8 << 10
	t.b = append(t.b, b...)
	if n := len(t.b) - most; n > 0 {
		t.b = append(t.b[:0], t.b[n:]...)
	}
	return len(b), nil
}

// String returns the last lines in one.
func (t *tail) String() string {
	lines := strings.Split(strings.TrimSpace(string(t.b)), "\n")
	lines = lines[max(0, len(lines)-lastLines):]
	return strings.ToValidUTF8(strings.Join(lines, "; "), "?")
}

// memory returns a file in memory with some content. ffmpeg can seek in it, which the formats of many files need.
func memory(name string, data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(data); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
