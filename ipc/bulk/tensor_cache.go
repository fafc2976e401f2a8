package bulk

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"patchbay/fault"
	"patchbay/ipc/wire"
	"patchbay/node/lru"
	"patchbay/node/pyjson"
)

// TensorBytes is the default budget of a TensorCache in bytes.
const TensorBytes = 512 << 20

// TensorCache keeps the data of tensors that came with a hash, so that hosts send text states and adapters once and
// then only the hash. Above its budget it evicts the least recently used data. TensorCache is safe for concurrent use.
type TensorCache struct {
	budget int
	held   *lru.Cache[[]byte]
}

// NewTensorCache returns an empty cache that holds at most budget bytes.
func NewTensorCache(budget int) *TensorCache {
	return &TensorCache{budget, lru.New[[]byte](int64(budget), nil)}
}

// put stores a copy of data under its verified hash and returns the copy. Data above the budget is returned as it is.
func (c *TensorCache) put(hash string, data []byte) []byte {
	if len(data) > c.budget {
		return data
	}
	own := bytes.Clone(data)
	c.held.Put(hash, own, int64(len(own)))
	return own
}

// Fill sets the data of every tensor in a request that has only a hash (SHA-256 of the data in hex), and stores the
// data of those that have both. A wrong hash is an error; unknown hashes are one error with code missing_tensors that
// lists them all, before anything runs.
func (c *TensorCache) Fill(o *pyjson.Object) error {
	var missing []any
	asked := map[string]bool{}
	err := eachTensor(o, func(t *wire.Tensor) error {
		if t.Hash == "" {
			return nil
		}
		t.Hash = strings.ToLower(t.Hash)
		data, _ := c.held.Get(t.Hash)
		switch {
		case data != nil && len(data) != t.Bytes():
			return fmt.Errorf("tensor of shape %v and dtype %s needs %d bytes, that of the hash %s has %d", t.Shape, t.DType,
				t.Bytes(), t.Hash, len(data))
		case data != nil:
			t.Data = data
		case t.Data == nil && !asked[t.Hash]:
			asked[t.Hash] = true
			missing = append(missing, t.Hash)
		case t.Data != nil:
			if sum := sha256.Sum256(t.Data); hex.EncodeToString(sum[:]) != t.Hash {
				return fmt.Errorf("tensor has the hash %x, not %s", sum, t.Hash)
			}
			t.Data = c.put(t.Hash, t.Data)
		}
		return nil
	})
	if err != nil {
		return fault.New(fault.BadRequest, "%v", err)
	}
	if len(missing) > 0 {
		e := fault.New(fault.MissingTensors, "%d tensors are named by hashes that are not known here; send them with their "+
			"data",
			len(missing))
		e.Extra = map[string]any{"missing": missing}
		return e
	}
	return nil
}

// eachTensor calls f with every tensor in a decoded value.
func eachTensor(v any, f func(*wire.Tensor) error) error {
	if t, ok := v.(*wire.Tensor); ok {
		return f(t)
	}
	_, err := pyjson.Replace(v, func(e any) (any, error) { return e, eachTensor(e, f) })
	return err
}
