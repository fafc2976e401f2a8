package sampling

import (
	"encoding/json"
	"strings"
)

// rawCase decodes a value of samplers.json. Values that are lists of names decode to an empty case.
type rawCase struct{ sampleCase }

// UnmarshalJSON implements json.Unmarshaler. It decodes objects and skips everything else.
func (c *rawCase) UnmarshalJSON(b []byte) error {
	if !strings.HasPrefix(string(b), "{") {
		return nil
	}
	return json.Unmarshal(b, &c.sampleCase)
}
