package parallel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/vmihailenco/msgpack/v5"

	"patchbay/parallel/rank"
)

// roundTrip encodes a command or reply to msgpack and decodes it again: what arrives shares no memory with what was
// sent, and whatever a command could not carry to another process is lost here. The long vectors go apart, as bytes,
// like those of remote.Client: msgpack takes one element after the other.
func roundTrip(v any) (any, error) {
	switch v := v.(type) {
	case rank.Command:
		return recoded(v, vectorsOfCommand)
	case rank.Reply:
		return recoded(v, func(r *rank.Reply) []*[]float32 { return ownVectors(&r.Outputs) })
	}
	return nil, fmt.Errorf("%T is neither command nor reply", v)
}

// recoded is roundTrip of a value whose long vectors are found by vectors, in an order that follows from the rest. It
// makes the way to them the value's own.
func recoded[T any](v T, vectors func(*T) []*[]float32) (out T, err error) {
	var apart [][]byte
	for _, p := range vectors(&v) {
		b, err := binary.Append(nil, binary.LittleEndian, *p)
		if err != nil {
			return out, err
		}
		apart, *p = append(apart, b), nil
	}
	var b bytes.Buffer
	if err := msgpack.NewEncoder(&b).Encode(v); err != nil {
		return out, err
	}
	if err := msgpack.NewDecoder(&b).Decode(&out); err != nil {
		return out, err
	}
	for i, p := range vectors(&out) {
		if len(apart[i]) == 0 {
			continue
		}
		*p = make([]float32, len(apart[i])/4)
		if _, err := binary.Decode(apart[i], binary.LittleEndian, *p); err != nil {
			return out, err
		}
	}
	return out, nil
}

// ownVectors makes a list of vectors its owner's alone and returns where they are.
func ownVectors(list *[][]float32) (out []*[]float32) {
	*list = slices.Clone(*list)
	for i := range *list {
		out = append(out, &(*list)[i])
	}
	return out
}

func vectorsOfCommand(c *rank.Command) (out []*[]float32) {
	if c.Evaluate != nil {
		own := *c.Evaluate
		c.Evaluate, out = &own, ownVectors(&own.Inputs)
	}
	if c.Open != nil {
		own := *c.Open
		own.Entries = slices.Clone(own.Entries)
		for i := range own.Entries {
			list := slices.Clone(own.Entries[i].Entries)
			own.Entries[i].Entries = list
			for k := range list {
				out = append(out, &list[k].Context.Data, &list[k].Context2.Data)
			}
		}
		c.Open = &own
	}
	return out
}
