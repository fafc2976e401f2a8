package tokenizer

// This file has the layouts of families as the recorded prompts need them.

// EncodeWithEnds is Encode with the start and end token that the vocabulary's own rules add around a text.
func (t *Tokenizer) EncodeWithEnds(text string) []int {
	ids := t.Encode(text)
	if t.Start != None {
		ids = append([]int{t.Start}, ids...)
	}
	if t.End != None {
		ids = append(ids, t.End)
	}
	return ids
}

func t5Flux() Layout { return T5("t5xxl", 256) }

func t5SD3() Layout { return T5("t5xxl", 77) }

func t5PixArt() Layout { return T5("t5xxl", 1) }

func pileT5() Layout {
	l := T5("pile_t5xl", 256)
	l.Pad, l.Embeddings = 1, false
	return l
}

func zImage() Layout {
	return Chat("qwen3_4b", "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", 151643)
}

func klein() Layout {
	l := Chat("qwen3_4b", "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", 151643)
	l.MinLength = 512
	return l
}

func mistral() Layout {
	l := Chat("mistral3_24b", "[SYSTEM_PROMPT]You are an AI that reasons about image descriptions. You give structured "+
		"responses focusing on object relationships, object\nattribution and actions without speculation."+
		"[/SYSTEM_PROMPT][INST]{}[/INST]", 11)
	l.Start = 1
	return l
}

func qwenImage() Layout {
	l := Describing("qwen25_7b")
	l.Embeddings = false
	return l
}
