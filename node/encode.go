package node

import "patchbay/node/value"

// encodePrompts runs the prompts through the encoders of the clip input; prompt gives the text for an encoder by its key.
func encodePrompts(c *Call, prompt func(key string) string) ([]any, error) {
	return encodeWanted(c, func(key string) (string, bool) { return prompt(key), true })
}

// encodeWanted leaves out the encoders that prompt does not want.
func encodeWanted(c *Call, prompt func(key string) (words string, wanted bool)) ([]any, error) {
	cond, missing, err := arg[*value.Clip](c, "clip").Encode(c.use(), prompt)
	for _, name := range missing {
		c.warn("node %s: no embedding %q; the rest of the prompt is used", c.ID, name)
	}
	if err != nil {
		return nil, err
	}
	return []any{value.Conditioning{cond}}, nil
}
