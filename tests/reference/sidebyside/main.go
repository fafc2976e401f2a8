// Command sidebyside runs what bench_torch.py runs in torch, once for every line on standard input, and answers with
// seconds by the clock and seconds of processor time. A line is "case dtype size": flux, t5, conv or vae; f32 or bf16
// (weights and activations); the side of the picture or the number of tokens. A line unlike the one before makes the
// weights and runs once outside the time.
package main

import (
	"bufio"
	"fmt"
	"os"
	"syscall"
	"time"

	"patchbay/engine"
	"patchbay/engine/cpu"
)

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "sidebyside:", err)
		os.Exit(1)
	}
}

// serve answers every line of standard input. Only the latest case keeps its memory.
func serve() error {
	ops, err := cpu.New(cpu.Config{Level: os.Getenv("PATCHBAY_CPU")})
	if err != nil {
		return err
	}
	fmt.Println("ready", ops.Name(), ops.Threads())
	b := &bench{ops: ops}
	last := ""
	var run func() error
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if line := lines.Text(); line != last {
			b.free()
			if run, err = b.open(line); err != nil {
				return fmt.Errorf("%q: %w", line, err)
			}
			if err := run(); err != nil {
				return fmt.Errorf("%q: %w", line, err)
			}
			last = line
		}
		before, began := processorTime(), time.Now()
		if err := run(); err != nil {
			return fmt.Errorf("%q: %w", last, err)
		}
		fmt.Printf("%.6f %.6f\n", time.Since(began).Seconds(), (processorTime() - before).Seconds())
	}
	return lines.Err()
}

// processorTime returns the processor time of this process: other programs may share the machine.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// bench makes the operands of a case.
type bench struct {
	ops   *cpu.Ops
	held  []engine.Buf
	close func()
}

// open parses a line and returns its run.
func (b *bench) open(line string) (func() error, error) {
	var name, dtype string
	var size int
	if _, err := fmt.Sscan(line, &name, &dtype, &size); err != nil {
		return nil, fmt.Errorf("want a case, a dtype and a size: %w", err)
	}
	d, ok := map[string]engine.DType{"f32": engine.F32, "bf16": engine.BF16}[dtype]
	if !ok {
		return nil, fmt.Errorf("dtype %q (allowed: f32, bf16)", dtype)
	}
	switch name {
	case "flux":
		return b.flux(d, size)
	case "t5":
		return b.t5(d, size)
	case "conv":
		return b.conv(d, size)
	case "vae":
		return b.decoder(d, size)
	}
	return nil, fmt.Errorf("case %q (allowed: flux, t5, conv, vae)", name)
}

func (b *bench) free() {
	if b.close != nil {
		b.close()
	}
	for _, m := range b.held {
		b.ops.Free(m)
	}
	b.close, b.held = nil, nil
}

// small fills n values in +-scale.
func small(n int, scale float32) []float32 {
	v, seed := make([]float32, n), uint32(7)
	for i := range v {
		seed = seed*1664525 + 1013904223
		v[i] = scale * float32(int32(seed)) / (1 << 31)
	}
	return v
}

// tensor returns noise of type d in memory of the backend.
func (b *bench) tensor(d engine.DType, shape ...int) (engine.Tensor, error) {
	t := engine.NewTensor(engine.Buf{}, d, shape...)
	m, err := b.ops.Alloc(t.Bytes())
	if err != nil {
		return t, err
	}
	b.held = append(b.held, m)
	t = engine.NewTensor(m, d, shape...)
	b.ops.Upload(t, small(t.Len(), 1))
	return t, nil
}

// weight packs noise.
func (b *bench) weight(d engine.DType, n, k, c int) (*engine.Weight, error) {
	data := make([]byte, n*k*d.Size())
	engine.Narrow(data, small(n*k, 0.05), d)
	p, err := b.ops.Pack(engine.Matrix{Data: data, DType: d, N: n, K: k}, c)
	if err != nil {
		return nil, err
	}
	b.held = append(b.held, p.Buf)
	return &engine.Weight{Name: "noise", Base: p}, nil
}
