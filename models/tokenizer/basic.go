package tokenizer

import (
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// basicWords splits a text as BERT's BasicTokenizer does (Devlin et al. 2018, tokenization.py) before lowercasing:
// control characters are removed, whitespace becomes spaces, every Chinese character is a word, and the text is in NFC.
func basicWords(text string) []string {
	var out strings.Builder
	out.Grow(len(text))
	for _, r := range text {
		switch {
		case r == ' ' || r == '\t' || r == '\n' || r == '\r' || unicode.Is(unicode.Zs, r):
			out.WriteByte(' ')
		case r == unicode.ReplacementChar || unicode.Is(unicode.C, r) || unicode.Is(unicode.Cn, r):
		case ideograph(r):
			out.WriteByte(' ')
			out.WriteRune(r)
			out.WriteByte(' ')
		default:
			out.WriteRune(r)
		}
	}
	return strings.FieldsFunc(norm.NFC.String(out.String()), pythonSpace)
}

// ideograph reports whether r is in BERT's list of blocks of Chinese characters.
func ideograph(r rune) bool {
	return r >= 0x4e00 && r <= 0x9fff || r >= 0x3400 && r <= 0x4dbf || r >= 0xf900 && r <= 0xfaff ||
		r >= 0x20000 && r <= 0x2a6df || r >= 0x2a700 && r <= 0x2ceaf || r >= 0x2f800 && r <= 0x2fa1f
}

// punctuation reports whether r is in BERT's punctuation class: all ASCII that is neither letter, digit, space nor
// control character, and Unicode category P.
func punctuation(r rune) bool {
	return r >= '!' && r <= '/' || r >= ':' && r <= '@' || r >= '[' && r <= '`' || r >= '{' && r <= '~' ||
		unicode.IsPunct(r)
}
