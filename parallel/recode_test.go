package parallel

import (
	"fmt"

	"github.com/vmihailenco/msgpack/v5"

	"patchbay/parallel/rank"
)

// roundTrip encodes a command or reply to msgpack and decodes it again: the result shares no memory with the original,
// and lacks anything that a command could not carry to another process.
func roundTrip(v any) (any, error) {
	switch v := v.(type) {
	case rank.Command:
		return recoded(v)
	case rank.Reply:
		return recoded(v)
	}
	return nil, fmt.Errorf("%T is neither command nor reply", v)
}

func recoded[T any](v T) (out T, err error) {
	b, err := msgpack.Marshal(&v)
	if err == nil {
		err = msgpack.Unmarshal(b, &out)
	}
	return out, err
}
