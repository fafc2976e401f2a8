package tokenizer

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"patchbay/tests/race"
)

// TestMemoryOfHostileFiles bounds the sum of all allocations while a 1 MiB file is read (an upper bound of the peak) by
// a multiple of its size. The files pack as many entries as possible into few bytes.
func TestMemoryOfHostileFiles(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: one goroutine computes")
	}
	const size = 1 << 20
	fill := func(head, part, tail string) []byte {
		return []byte(head + strings.TrimSuffix(strings.Repeat(part, size/len(part)), ",") + tail)
	}
	distinct := func(format string) string {
		var b strings.Builder
		for i := 0; b.Len() < size; i++ {
			fmt.Fprintf(&b, format, i)
		}
		return strings.TrimSuffix(b.String(), ",")
	}
	const unigramHead = `{"pre_tokenizer":{"type":"Metaspace","replacement":"▁"},"model":{"type":"Unigram","unk_id":0,` +
		`"vocab":[`
	var distinctModel []byte
	for i := 0; len(distinctModel) < size; i++ {
		piece := fmt.Sprintf("%x", i)
		distinctModel = append(append(distinctModel, '\n', byte(len(piece)+2), '\n', byte(len(piece))), piece...)
	}
	distinctModel = append(distinctModel, "\n\x09\n\x05<unk>\x18\x02"...)
	manyIDs := append(bytes.Repeat([]byte("\n\x03\n\x01a"), size/5), "\n\x09\n\x05<unk>\x18\x02"...)
	bert := func(data []byte) (*Tokenizer, error) { return FromBERTVocab(data) }
	for name, c := range map[string]struct {
		load func([]byte) (*Tokenizer, error)
		data []byte
	}{
		"json equal pieces":    {FromJSON, fill(unigramHead, `["a",0],`, `]}}`)},
		"json distinct pieces": {FromJSON, []byte(unigramHead + distinct(`["%x",0],`) + `]}}`)},
		"json null pieces":     {FromJSON, fill(unigramHead, `null,`, `]}}`)},
		"json long piece":      {FromJSON, fill(unigramHead+`["`, `a`, `",0]]}}`)},
		"json added tokens":    {FromJSON, fill(`{"added_tokens":[`, `{},`, `],"model":{"type":"Unigram"}}`)},
		"json normalizers": {FromJSON, fill(`{"normalizer":{"type":"Sequence","normalizers":[`, `1,`,
			`]},`+unigramHead[1:]+`["a",0]]}}`)},
		"json post processor": {FromJSON, fill(`{"post_processor":{"type":"RobertaProcessing","cls":[`, `1,`,
			`]},`+unigramHead[1:]+`["a",0]]}}`)},
		"json merges": {FromJSON, fill(`{"model":{"type":"BPE","merges":[`, `"",`, `]}}`)},
		"json huge id": {FromJSON, []byte(`{"model":{"type":"BPE","end_of_word_suffix":"</w>","vocab":{"a":2147483647},` +
			`"merges":[]}}`)},
		"json bpe vocab": {FromJSON, []byte(`{"model":{"type":"BPE","end_of_word_suffix":"</w>","merges":[],"vocab":{` +
			distinct(`"%x":1,`) + `}}}`)},
		"model many pieces":   {FromSentencePiece, manyIDs},
		"model distinct":      {FromSentencePiece, distinctModel},
		"model empty pieces":  {FromSentencePiece, bytes.Repeat([]byte("\n\x00"), size/2)},
		"bert short lines":    {bert, bytes.Repeat([]byte("\n"), size)},
		"bert distinct lines": {bert, []byte(distinct("%x\n"))},
	} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		tok, err := c.load(c.data)
		runtime.ReadMemStats(&after)
		var live runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&live)
		runtime.KeepAlive(tok)
		total := after.TotalAlloc - before.TotalAlloc
		t.Logf("%-22s %9d bytes, allocated %6.1f times that, kept %4.1f, error %.70v", name, len(c.data),
			float64(total)/float64(len(c.data)),
			float64(int64(live.HeapAlloc)-int64(before.HeapAlloc))/float64(len(c.data)), err)
		if limit := uint64(len(c.data))*40 + 1<<20; total > limit {
			t.Errorf("%s: %d bytes allocated for a file of %d, limit %d", name, total, len(c.data), limit)
		}
	}
}
