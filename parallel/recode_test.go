package parallel

import (
	"fmt"

	"github.com/vmihailenco/msgpack/v5"

	"patchbay/parallel/rank"
)

// roundTrip encodes a command or reply to msgpack and decodes it again: what arrives shares no memory with what was
// sent, and whatever a command could not carry to another process is lost here.
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
