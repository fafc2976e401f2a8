package tokenizer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const benchPrompt = "a wide photograph of an old harbour at dawn, fishing boats, soft golden light, " +
	"(masterpiece:1.2), 35mm film grain, "

// BenchmarkEncode measures plain tokenization of a 460-byte prompt.
func BenchmarkEncode(b *testing.B) {
	for _, name := range []string{"clip", "t5", "qwen2.5", "pile-t5", "hunyuan-bert", "demo_clip", "demo_t5"} {
		b.Run(name, func(b *testing.B) {
			var tok *Tokenizer
			switch name {
			case "demo_clip":
				tok = demoCLIP(b)
			case "demo_t5":
				tok = demoT5(b)
			default:
				tok = vocabulary(b, name)
			}
			text := strings.Repeat(benchPrompt, 4)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				tok.Encode(text)
			}
		})
	}
}

// BenchmarkLoad measures reading a vocabulary from memory.
func BenchmarkLoad(b *testing.B) {
	dir := os.Getenv("PATCHBAY_TEST_TOKENIZERS")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "tokenizers")
	}
	for _, name := range []string{"clip", "t5", "qwen2.5"} {
		b.Run(name, func(b *testing.B) {
			vocabulary(b, name)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Open(filepath.Join(dir, name)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkLongWord is the worst case of the merge loop: one word of 64 KiB.
func BenchmarkLongWord(b *testing.B) {
	tok := demoCLIP(b)
	text := strings.Repeat("background", 6554)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		tok.Encode(text)
	}
}
