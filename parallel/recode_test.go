package parallel

import (
	"bytes"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"

	"patchbay/parallel/rank"
)

// roundTrip encodes a command or reply to msgpack and decodes it again: what arrives shares no memory with what was
// sent, and whatever a command could not carry to another process is lost here.
func roundTrip(v any) (any, error) {
	var b bytes.Buffer
	if err := msgpack.NewEncoder(&b).Encode(v); err != nil {
		return nil, err
	}
	d := msgpack.NewDecoder(&b)
	switch v.(type) {
	case rank.Command:
		var c rank.Command
		err := d.Decode(&c)
		return c, err
	case rank.Reply:
		var r rank.Reply
		err := d.Decode(&r)
		return r, err
	}
	return nil, fmt.Errorf("%T is neither command nor reply", v)
}
