package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// lowerEach lowercases character by character without context, as Rust's char::to_lowercase does: only U+0130 becomes
// two characters (Unicode SpecialCasing.txt, unconditional lower mappings).
func lowerEach(s string) string {
	return strings.Map(unicode.ToLower, strings.ReplaceAll(s, "İ", "i\u0307"))
}

// lowerText lowercases as Python's str.lower does: like lowerEach, but a capital sigma at the end of a word becomes the
// final form (Unicode standard, table 3-17, Final_Sigma).
func lowerText(s string) string {
	var out strings.Builder
	for i, r := range s {
		if r == 'Σ' && casedBefore(s[:i]) && !casedAfter(s[i+utf8.RuneLen(r):]) {
			out.WriteRune('ς')
			continue
		}
		out.WriteString(lowerEach(string(r)))
	}
	return out.String()
}

// casedBefore reports whether s ends in a cased letter, ignoring case-ignorable characters after it.
func casedBefore(s string) bool {
	for s != "" {
		r, width := utf8.DecodeLastRuneInString(s)
		if !caseIgnorable(r) {
			return cased(r)
		}
		s = s[:len(s)-width]
	}
	return false
}

// casedAfter reports whether s begins with a cased letter, ignoring case-ignorable characters before it.
func casedAfter(s string) bool {
	for _, r := range s {
		if !caseIgnorable(r) {
			return cased(r)
		}
	}
	return false
}

// cased reports whether r has the Unicode property Cased (DerivedCoreProperties.txt).
func cased(r rune) bool {
	return unicode.In(r, unicode.Lu, unicode.Ll, unicode.Lt, unicode.Other_Lowercase, unicode.Other_Uppercase)
}

// caseIgnorable reports whether r has the Unicode property Case_Ignorable: marks, format and modifier characters, and
// the characters that join words (Word_Break MidLetter, MidNumLet, Single_Quote).
func caseIgnorable(r rune) bool {
	return unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf, unicode.Lm, unicode.Sk) ||
		strings.ContainsRune("'.:\u00b7\u0387\u055f\u05f4\u2018\u2019\u2024\u2027\ufe13\ufe52\ufe55\uff07\uff0e\uff1a", r)
}

// dropMarks removes accents: canonical decomposition without the nonspacing marks.
func dropMarks(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Mn, r) {
			return -1
		}
		return r
	}, norm.NFD.String(s))
}

// pythonSpace reports whether Python's str.isspace holds for r: White_Space and the four separators U+001C..U+001F.
func pythonSpace(r rune) bool {
	return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f
}
