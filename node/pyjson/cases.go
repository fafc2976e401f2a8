package pyjson

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// IsSpace is Python's str.isspace for one character: Unicode's white space and the four separators of ASCII.
func IsSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

// Upper is Python's str.upper, Lower str.lower: full mappings of Unicode, in which one character may become several.
func Upper(s string) string { return cases.Upper(language.Und).String(s) }

// Lower makes a capital sigma at the end of a word a final one.
func Lower(s string) string { return cases.Lower(language.Und).String(s) }

// Capitalized is Python's str.capitalize: the first character in title case, all others small.
func Capitalized(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return s
	}
	return titled(r) + strings.TrimPrefix(Lower(s), Lower(s[:n]))
}

// Titled is Python's str.title: a character after one without case is in title case, one after a letter small.
func Titled(s string) string {
	var b strings.Builder
	rest, after := Lower(s), false
	for _, r := range s {
		n := utf8.RuneLen('σ') // a capital sigma becomes one of two characters of the same length
		if r != 'Σ' {
			n = len(Lower(string(r)))
		}
		if after {
			b.WriteString(rest[:n])
		} else {
			b.WriteString(titled(r))
		}
		rest, after = rest[n:], cased(r)
	}
	return b.String()
}

// titled returns the title case of one character.
func titled(r rune) string { return cases.Title(language.Und, cases.NoLower).String(string(r)) }

func cased(r rune) bool {
	return unicode.In(r, unicode.Upper, unicode.Lower, unicode.Title, unicode.Other_Uppercase, unicode.Other_Lowercase)
}
