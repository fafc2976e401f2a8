package tokenizer

import (
	"strings"
	"unicode"
)

// byteRune returns the printable character that stands for a byte in byte-level vocabularies (GPT-2, encoder.py):
// printable Latin-1 stands for itself, the other bytes are numbered from U+0100 on.
func byteRune(b byte) rune {
	printable := func(c int) bool { return c >= '!' && c <= '~' || c >= 0xa1 && c <= 0xac || c >= 0xae }
	if printable(int(b)) {
		return rune(b)
	}
	r := rune(0x100)
	for c := range int(b) {
		if !printable(c) {
			r++
		}
	}
	return r
}

// byteIDs returns the id of every single byte followed by a suffix, None if the vocabulary lacks it.
func byteIDs(vocab map[string]int32, suffix string) (ids [256]int32) {
	for b := range ids {
		id, ok := vocab[string(byteRune(byte(b)))+suffix]
		if !ok {
			id = None
		}
		ids[b] = id
	}
	return ids
}

// contraction returns the length in bytes of an English contraction ending ('s 't 're 've 'm 'll 'd, any case) at the
// start of text, 0 if there is none. U+017F folds to s.
func contraction(text string) int {
	if len(text) < 2 || text[0] != '\'' {
		return 0
	}
	switch text[1] | 0x20 {
	case 's', 't', 'm', 'd':
		return 2
	}
	if len(text) >= 3 {
		switch string([]byte{text[1] | 0x20, text[2] | 0x20}) {
		case "re", "ve", "ll":
			return 3
		}
		if text[1:3] == "\u017f" {
			return 3
		}
	}
	return 0
}

// symbolRune reports whether r is in the class [^\s\p{L}\p{N}].
func symbolRune(r rune) bool {
	return !unicode.IsSpace(r) && !unicode.IsLetter(r) && !unicode.IsNumber(r)
}

// span returns the length in bytes of the longest prefix of text whose characters are all in class.
func span(text string, class func(rune) bool) int {
	return len(text) - len(strings.TrimLeftFunc(text, class))
}
