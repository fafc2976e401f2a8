package node

// encode runs the prompts through the encoders of the clip input; prompt gives the text for an encoder by its key.
func (c *Call) encode(prompt func(key string) string) ([]any, error) {
	return c.encodeSome(func(key string) (string, bool) { return prompt(key), true })
}

// encodeSome leaves out the encoders that prompt does not want.
func (c *Call) encodeSome(prompt func(key string) (words string, wanted bool)) ([]any, error) {
	cond, missing, err := arg[*Clip](c, "clip").encode(c.use(), prompt)
	for _, name := range missing {
		c.warn("node %s: no embedding %q; the rest of the prompt is used", c.ID, name)
	}
	if err != nil {
		return nil, err
	}
	return []any{Conditioning{cond}}, nil
}
