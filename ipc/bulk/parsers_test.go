package bulk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"testing"

	"golang.org/x/sys/unix"

	"patchbay/array"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
	"patchbay/node/pyjson"
	"patchbay/tests/hammer"
)

// refsTarget checks that references point into memory that came with the frame or are refused, and that descriptors and
// mappings are released. The flag brings two regions.
func refsTarget(tb testing.TB) *hammer.Target[error] {
	sizes := []int{1 << 16, 100}
	var regions []*Region
	for _, n := range sizes {
		r, err := NewRegion(n)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(r.Release)
		regions = append(regions, r)
	}
	picture := map[string]*wire.Ref{wire.RefKey: {Kind: wire.RefShm, Bytes: 4, FD: 1, Offset: 8}}
	one := map[string]any{
		"a": &wire.Tensor{Tensor: array.Tensor{DType: "f16", Shape: []int{2}, Data: []byte{0, 0x3c, 0, 0}}},
		"c": []any{1, picture},
	}
	text, err := wire.Encode(one, wire.JSON)
	if err != nil {
		tb.Fatal(err)
	}
	seeds := []hammer.Input{{Data: wiretest.Packed(tb, one)}, {Data: text}}
	both := map[string]any{"op": "exec", "tag": 1, "inputs": []any{
		&wire.Tensor{
			Tensor: array.Tensor{DType: "f32", Shape: []int{16384}},
			Ref:    &wire.Ref{Kind: wire.RefShm, Bytes: 1 << 16},
		},
		map[string]*wire.Ref{wire.RefKey: {Kind: wire.RefShm, Bytes: 100, FD: 1}},
	}}
	for _, s := range seeds {
		seeds = append(seeds, hammer.Input{Data: s.Data, Flag: true})
	}
	seeds = append(seeds, hammer.Input{Data: wiretest.Packed(tb, both), Flag: true})
	return &hammer.Target[error]{
		Name: "FuzzRefs", Flag: true, Seeds: seeds,
		Parse: func(in hammer.Input) (wrong error, refused error) {
			enc, ok := wire.Sniff(in.Data)
			if !ok {
				return nil, errors.New("no map")
			}
			o, err := wire.Decode(in.Data, enc, wire.DefaultLimits())
			if err != nil {
				return nil, err
			}
			var fds []int
			if in.Flag {
				for _, r := range regions {
					fd, err := unix.FcntlInt(uintptr(r.fd), unix.F_DUPFD_CLOEXEC, 0)
					if err != nil {
						return err, nil
					}
					fds = append(fds, fd)
				}
			}
			h, err := MappedReply(o, fds)
			if err != nil {
				return nil, err
			}
			defer h.Release()
			if in.Flag && (h == nil || len(h.regions) != len(sizes)) {
				return errors.New("a frame with two descriptors was taken, and does not hold them"), nil
			}
			return outside(o, h), nil
		},
		Check: func(_ hammer.Input, wrong error, _ error) error { return wrong },
		Bound: func(in hammer.Input) int64 {
			enc, ok := wire.Sniff(in.Data)
			if !ok {
				return wiretest.FixedBytes
			}
			return wiretest.FixedBytes + 2*wiretest.DecodedBound(in.Data, enc)
		},
	}
}

// outside returns an error for a tensor whose reference was not replaced, and touches the memory of those that were.
func outside(v any, h *Hold) error {
	switch x := v.(type) {
	case *wire.Tensor:
		if err := x.Check(); err != nil {
			return fmt.Errorf("a tensor that does not hold together was taken: %w", err)
		}
		if h.Has(x.Data) {
			_ = x.Data[0] + x.Data[len(x.Data)-1]
		}
	case []byte:
		if h.Has(x) {
			_ = x[0] + x[len(x)-1]
		}
	case []any:
		for _, e := range x {
			if err := outside(e, h); err != nil {
				return err
			}
		}
	case *pyjson.Object:
		for _, k := range x.Keys() {
			e, _ := x.Get(k)
			if err := outside(e, h); err != nil {
				return err
			}
		}
	}
	return nil
}

// A stream of chunks in a fuzz input is the size of the payload as u32 and then every message after its length as u16,
// all big-endian.
const chunkMost = 1 << 10 // bytes of a chunk that was requested

func chunkStream(total int, chunks ...[]byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(total))
	for _, c := range chunks {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(c))), c...)
	}
	return b
}

func aChunk(number uint32, at int, data []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, number)
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(data))
	return append(binary.BigEndian.AppendUint64(b, uint64(at)), data...)
}

// mendChunks corrects the checksums of the chunks in a stream.
func mendChunks(b []byte) []byte {
	for rest := b[min(4, len(b)):]; len(rest) >= 2+chunkHead; {
		n := int(binary.BigEndian.Uint16(rest))
		if rest = rest[2:]; n > len(rest) {
			break
		}
		if n > chunkHead {
			binary.BigEndian.PutUint32(rest[4:], crc32.ChecksumIEEE(rest[chunkHead:n]))
		}
		rest = rest[n:]
	}
	return b
}

// chunksTarget checks that what is accepted of a stream are the chunks 0, 1, 2 ..., each at the end of the one before,
// never more than there should be.
func chunksTarget() *hammer.Target[[]byte] {
	a, b := wiretest.Noise(1000), wiretest.Noise(600)
	whole := chunkStream(1600, aChunk(0, 0, a), aChunk(1, 1000, b))
	return &hammer.Target[[]byte]{
		Name: "FuzzChunks",
		Seeds: []hammer.Input{
			{Data: whole},
			{Data: chunkStream(1600, aChunk(1, 1000, b), aChunk(0, 0, a))},
			{Data: chunkStream(1000, aChunk(0, 0, a), aChunk(0, 0, a))},
			{Data: chunkStream(700, aChunk(0, 0, b), aChunk(1, 600, b))},
			{Data: chunkStream(40, aChunk(0, 0, a[:10]), aChunk(1, 10, a[:10]), aChunk(2, 20, a[:10]), aChunk(3, 30, a[:10]))},
			{Data: chunkStream(1<<31, aChunk(1<<31, 1<<40, b))},
		},
		Mend: mendChunks,
		Parse: func(in hammer.Input) ([]byte, error) {
			if len(in.Data) < 4 {
				return nil, io.EOF
			}
			total := int(binary.BigEndian.Uint32(in.Data))
			var got []byte
			number := uint32(0)
			for rest := in.Data[4:]; len(got) < total; {
				if len(rest) < 2 || int(binary.BigEndian.Uint16(rest)) > len(rest)-2 {
					return got, io.EOF
				}
				m := rest[2 : 2+binary.BigEndian.Uint16(rest)]
				n, err := checkChunk(m, number, len(got), chunkMost, total)
				if err != nil {
					return got, err
				}
				if len(m) != chunkHead+n {
					return got, fmt.Errorf("of a chunk of %d bytes %d were taken", len(m), n)
				}
				got, number, rest = append(got, m[chunkHead:]...), number+1, rest[2+len(m):]
			}
			return got, nil
		},
		Check: func(in hammer.Input, got []byte, refused error) error {
			if len(in.Data) < 4 {
				return nil
			}
			total := int(binary.BigEndian.Uint32(in.Data))
			if len(got) > total || refused == nil && len(got) != total {
				return fmt.Errorf("%d bytes of %d were taken (%w)", len(got), total, refused)
			}
			for i, at, rest := uint64(0), 0, in.Data[4:]; at < len(got); i++ {
				n := int(binary.BigEndian.Uint16(rest)) - chunkHead
				m := rest[2:]
				if n < 1 || n > chunkMost || binary.BigEndian.Uint64(m[8:]) != uint64(at) ||
					uint64(binary.BigEndian.Uint32(m)) != i || !bytes.Equal(got[at:at+n], m[chunkHead:chunkHead+n]) {
					return fmt.Errorf("chunk %d was taken: %d bytes at %d, with the header %x", i, n, at, m[:chunkHead])
				}
				at, rest = at+n, m[chunkHead+n:]
			}
			return nil
		},
		Bound: func(in hammer.Input) int64 { return wiretest.FixedBytes + 4*int64(len(in.Data)) },
	}
}

// pullsTarget checks that chunks below 4096 bytes and windows outside 1 to 1024 are refused.
func pullsTarget(tb testing.TB) *hammer.Target[PullRequest] {
	return &hammer.Target[PullRequest]{
		Name: "FuzzPulls",
		Seeds: []hammer.Input{
			{Data: wiretest.Packed(tb, PullRequest{ID: "a", Chunk: ChunkBytes, Window: ChunkWindow})},
			{Data: wiretest.Packed(tb, PullRequest{ID: "a", Chunk: 1 << 62, Window: 1})},
			{Data: wiretest.Packed(tb, map[string]any{"id": "a", "chunk": 5e3, "window": -1})},
		},
		Parse: func(in hammer.Input) (PullRequest, error) { return parsePull(in.Data) },
		Check: func(_ hammer.Input, q PullRequest, refused error) error {
			if refused == nil && (q.Chunk < 4096 || q.Window < 1 || q.Window > 1024) {
				return fmt.Errorf("%+v was taken", q)
			}
			return nil
		},
		Bound: func(in hammer.Input) int64 { return wiretest.DecodedBound(in.Data, wire.Msgpack) },
	}
}

// FuzzRefs replaces references to shared memory in arbitrary bodies.
func FuzzRefs(f *testing.F) { refsTarget(f).Fuzz(f) }

// FuzzChunks takes streams of chunks.
func FuzzChunks(f *testing.F) { chunksTarget().Fuzz(f) }

// FuzzPulls reads requests for chunks.
func FuzzPulls(f *testing.F) { pullsTarget(f).Fuzz(f) }

// TestParsersUnderTheHammer runs every parser of untrusted bytes on mutated inputs: 20,000 each, 10,000,000 in `make
// soak`.
func TestParsersUnderTheHammer(t *testing.T) {
	t.Run("Refs", func(t *testing.T) { refsTarget(t).Run(t, hammer.Runs) })
	t.Run("Chunks", func(t *testing.T) { chunksTarget().Run(t, hammer.Runs) })
	t.Run("Pulls", func(t *testing.T) { pullsTarget(t).Run(t, hammer.Runs) })
}
