package classes

import (
	"patchbay/node/graph"
	"patchbay/node/value"
)

// encodePrompts runs the prompts through the encoders of the clip input; prompt gives the text for an encoder by its
// key.
func encodePrompts(c *graph.Call, prompt func(key string) string) ([]any, error) {
	return encodeWanted(c, func(key string) (string, bool) { return prompt(key), true })
}

// perEncoder gives every encoder the input that has its key's name; the others read the first, as in ComfyUI.
func perEncoder(c *graph.Call, first string) ([]any, error) {
	return encodePrompts(c, func(key string) string {
		if own, ok := c.Raw(key).(string); ok {
			return own
		}
		return c.Str(first)
	})
}

// encodeWanted leaves out the encoders that prompt does not want.
func encodeWanted(c *graph.Call, prompt func(key string) (words string, wanted bool)) ([]any, error) {
	cond, missing, err := graph.Arg[*value.Clip](c, "clip").Encode(c.Use(), prompt)
	for _, name := range missing {
		c.Warn("node %s: no embedding %q; the rest of the prompt is used", c.ID, name)
	}
	if err != nil {
		return nil, err
	}
	return []any{value.Conditioning{cond}}, nil
}
