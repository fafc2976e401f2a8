package tokenizer

import (
	"encoding/binary"
	"fmt"
)

// protoField is one field of a protobuf message (encoding specification, "Message Structure").
type protoField struct {
	number int
	wire   int
	value  uint64 // varint and fixed32
	bytes  []byte // length-delimited: a view of the message
}

// The wire types in use.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
	wireFixed32 = 5
)

// eachField calls visit for every field of a message, in order, without copying.
func eachField(message []byte, visit func(protoField) error) error {
	for at := 0; at < len(message); {
		tag, n := binary.Uvarint(message[at:])
		if n <= 0 || tag>>3 == 0 || tag>>3 > 1<<29-1 {
			return fmt.Errorf("protobuf: bad field tag at byte %d of %d", at, len(message))
		}
		at += n
		f := protoField{number: int(tag >> 3), wire: int(tag & 7)}
		rest, size := message[at:], 0
		switch f.wire {
		case wireVarint:
			if f.value, size = binary.Uvarint(rest); size <= 0 {
				return fmt.Errorf("protobuf: bad varint at byte %d of %d", at, len(message))
			}
		case wireFixed64, wireFixed32:
			if size = 4; f.wire == wireFixed64 {
				size = 8
			}
			if len(rest) < size {
				return fmt.Errorf("protobuf: field %d is cut off at byte %d", f.number, at)
			}
			f.value = uint64(binary.LittleEndian.Uint32(rest)) // no caller reads a fixed64
		case wireBytes:
			length, n := binary.Uvarint(rest)
			if n <= 0 || length > uint64(len(rest)-n) {
				return fmt.Errorf("protobuf: field %d at byte %d is longer than what is left", f.number, at)
			}
			f.bytes, size = rest[n:n+int(length)], n+int(length)
		default:
			return fmt.Errorf("protobuf: field %d has wire type %d, allowed are 0, 1, 2, 5", f.number, f.wire)
		}
		at += size
		if err := visit(f); err != nil {
			return err
		}
	}
	return nil
}
