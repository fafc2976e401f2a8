package nccl

import (
	"bytes"
	"hash/fnv"
	"os"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/engine/cuda/nccl"
	"patchbay/parallel/comm"
	"patchbay/parallel/scope"
)

// talk is the connection in host memory of the processes of a group. Over it they share the ids of their communicators
// and the end of the group, which NCCL does not report. nil: all ranks share this process.
type talk struct {
	ends []comm.Comm // by rank; nil: in another process
}

// meet connects the hosts of a group. over is a transport of host memory.
func meet(over comm.Transport, of comm.Group, ops []engine.Ops) (*talk, error) {
	of.Name += " by NCCL"
	of.Pipe = false
	of.Deadline = patienceOf(of)
	hosts := make([]engine.Ops, len(ops))
	for r, o := range ops {
		if o != nil {
			hosts[r] = hostSide{}
		}
	}
	ends, err := over.Connect(of, hosts)
	return &talk{ends}, err
}

// hostSide stands for the Ops of a rank whose tensors are in host memory.
type hostSide struct{ engine.Ops }

// gather returns the words of all ranks, counts[i] bytes of rank i. Only one gather may run at a time.
func (k *talk) gather(words [][]byte, counts []int) (all [][]byte, err error) {
	var got []byte
	wait := scope.New(nil)
	for r, e := range k.ends {
		if e == nil {
			continue
		}
		out := make([]byte, comm.Total(counts))
		got = out
		wait.Go("words of ranks", func() error {
			e.Run(comm.NewAllGather(vector(out), vector(words[r]), counts))
			return nil
		})
	}
	err = wait.Wait()
	for _, n := range counts {
		all, got = append(all, got[:n]), got[n:]
	}
	return all, err
}

func vector(b []byte) engine.Tensor {
	return engine.NewTensor(engine.Buf{Host: b}, engine.U8, len(b))
}

// onAbort registers f to be called when a rank in another process has ended the group, or that process has ended.
func (k *talk) onAbort(f func(cause error)) {
	for _, e := range k.ends {
		if aborter, ok := e.(interface{ OnAbort(f func(error)) }); ok {
			aborter.OnAbort(f)
			return // all ends share one Rendezvous
		}
	}
}

// abort ends the group in the other processes.
func (k *talk) abort(cause error) {
	for _, e := range k.ends {
		if e != nil {
			e.Abort(cause)
			return
		}
	}
}

// A word describes a rank: its GPU, and the names of communicators that its process has cached.
const (
	placeLength = 128
	cachedNames = 16
	nameLength  = 8
	wordLength  = placeLength + cachedNames*nameLength
)

// short returns a name of communicators that fits into a word: a hash of their id.
func short(id []byte) []byte {
	h := fnv.New64a()
	_, _ = h.Write(id) // never fails
	return h.Sum(nil)
}

// introduce returns where all ranks are, and which cached communicators all their processes have, in the order of
// rank 0.
func (k *talk) introduce(streams []*cuda.Ops, cached []*wires) (where []string, known [][]byte, err error) {
	machine, _ := os.Hostname()
	words := make([][]byte, len(streams))
	for r, s := range streams {
		if s == nil {
			continue
		}
		place := machine + "/" + s.Location()
		words[r] = make([]byte, wordLength)
		copy(words[r][:placeLength], place[max(0, len(place)-placeLength):])
		for i, w := range cached[max(0, len(cached)-cachedNames):] {
			copy(words[r][placeLength+i*nameLength:], w.name)
		}
	}
	all, err := k.gather(words, slices.Repeat([]int{wordLength}, len(streams)))
	if err != nil {
		return nil, nil, err
	}
	for _, w := range all {
		where = append(where, strings.TrimRight(string(w[:placeLength]), "\x00"))
	}
	for name := range slices.Chunk(all[0][placeLength:], nameLength) {
		inAll := !slices.ContainsFunc(all, func(w []byte) bool {
			return !slices.ContainsFunc(slices.Collect(slices.Chunk(w[placeLength:], nameLength)),
				func(n []byte) bool { return bytes.Equal(n, name) })
		})
		if inAll && !bytes.Equal(name, make([]byte, nameLength)) {
			known = append(known, name)
		}
	}
	return where, known, nil
}

// share distributes the ids for that many communicators, which rank 0 makes, to all ranks.
func (k *talk) share(groups int, newIDs func() ([][]byte, error)) (ids [][]byte, err error) {
	counts, words := make([]int, len(k.ends)), make([][]byte, len(k.ends))
	counts[0] = groups * nccl.IDLength
	if k.ends[0] != nil {
		if ids, err = newIDs(); err != nil {
			k.abort(err)
			return nil, err
		}
		words[0] = slices.Concat(ids...)
	}
	all, err := k.gather(words, counts)
	if err != nil {
		return nil, err
	}
	return slices.Collect(slices.Chunk(all[0], nccl.IDLength)), nil
}
