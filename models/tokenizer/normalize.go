package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// normalizer rewrites a text before it is split into pieces.
type normalizer func(string) string

// normalizerDepth bounds the nesting of sequences in a file; real files have one level.
const normalizerDepth = 8

// parseNormalizer parses the "normalizer" member of a tokenizer.json; null gives nil.
func parseNormalizer(data json.RawMessage, depth int) (normalizer, error) {
	if isNull(data) {
		return nil, nil
	}
	var n struct {
		Type        string
		Normalizers memberList
		Charsmap    []byte `json:"precompiled_charsmap"`
		Left        *bool  `json:"strip_left"`
		Right       *bool  `json:"strip_right"`
		Pattern     struct{ String, Regex *string }
		Content     string
		Prepend     string
	}
	if err := json.Unmarshal(data, &n); err != nil {
		return nil, fmt.Errorf("normalizer: %w", err)
	}
	switch n.Type {
	case "Sequence":
		if depth >= normalizerDepth {
			return nil, fmt.Errorf("normalizer: sequences are nested deeper than %d", normalizerDepth)
		}
		return parseNormalizers(n.Normalizers, depth+1)
	case "Precompiled":
		table, err := parseCharsmap(n.Charsmap)
		if err != nil || table == nil {
			return nil, err
		}
		return table.normalizeGraphemes, nil
	case "Strip":
		return func(s string) string {
			if n.Left == nil || *n.Left {
				s = strings.TrimLeftFunc(s, unicode.IsSpace)
			}
			if n.Right == nil || *n.Right {
				s = strings.TrimRightFunc(s, unicode.IsSpace)
			}
			return s
		}, nil
	case "Replace":
		return parseReplace(n.Pattern.String, n.Pattern.Regex, n.Content)
	case "Prepend":
		return func(s string) string {
			if s == "" {
				return s
			}
			return n.Prepend + s
		}, nil
	}
	if fixed := map[string]normalizer{
		"NFC": norm.NFC.String, "NFD": norm.NFD.String, "NFKC": norm.NFKC.String, "NFKD": norm.NFKD.String,
		"Lowercase": lowerEach, "StripAccents": dropMarks,
	}[n.Type]; fixed != nil {
		return fixed, nil
	}
	return nil, fmt.Errorf("normalizer type %.40q is not supported; known are Sequence, Precompiled, NFC, NFD, NFKC, "+
		"NFKD, Lowercase, StripAccents, Strip, Replace, Prepend", n.Type)
}

// parseNormalizers chains the members of a sequence.
func parseNormalizers(list []json.RawMessage, depth int) (normalizer, error) {
	var chain []normalizer
	for _, data := range list {
		n, err := parseNormalizer(data, depth)
		if err != nil {
			return nil, err
		}
		if n != nil {
			chain = append(chain, n)
		}
	}
	return func(s string) string {
		for _, n := range chain {
			s = n(s)
		}
		return s
	}, nil
}

// parseReplace parses a Replace normalizer. In Go \s, \d, \w and \b are ASCII only, while the files mean Unicode, so
// patterns that use them are rejected rather than misread.
func parseReplace(literal, pattern *string, content string) (normalizer, error) {
	switch {
	case literal != nil && *literal != "":
		from := *literal
		return func(s string) string { return strings.ReplaceAll(s, from, content) }, nil
	case pattern == nil || *pattern == "":
		return nil, errors.New("normalizer Replace: pattern needs a non-empty String or Regex")
	}
	for i := 0; i+1 < len(*pattern); i++ {
		if (*pattern)[i] == '\\' {
			if i++; strings.IndexByte("sSdDwWbB", (*pattern)[i]) >= 0 {
				return nil, fmt.Errorf("normalizer Replace: pattern %.60q uses a class that is not supported (\\s, \\d, \\w, \\b)",
					*pattern)
			}
		}
	}
	re, err := regexp.Compile(*pattern)
	if err != nil {
		return nil, fmt.Errorf("normalizer Replace: %w", err)
	}
	return func(s string) string { return re.ReplaceAllLiteralString(s, content) }, nil
}

// memberList is a JSON array of members of a pipeline. Decoding fails as soon as there are more than listLimit, because
// millions of one-byte members would cost fifty times their size.
type memberList []json.RawMessage

const listLimit = 64

// UnmarshalJSON decodes the array; null gives an empty one.
func (l *memberList) UnmarshalJSON(data []byte) (err error) {
	*l, err = decodeList[json.RawMessage](data, listLimit)
	return err
}

// decodeList decodes a JSON array of at most limit members; null is an empty one.
func decodeList[T any](data []byte, limit int) ([]T, error) {
	if isNull(data) {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if open, err := d.Token(); err != nil || open != json.Delim('[') {
		return nil, fmt.Errorf("%.20q is not an array", data)
	}
	var list []T
	for d.More() {
		if len(list) == limit {
			return nil, fmt.Errorf("array with more than %d members", limit)
		}
		var member T
		if err := d.Decode(&member); err != nil {
			return nil, err
		}
		list = append(list, member)
	}
	return list, nil
}

// isNull reports whether a JSON member is absent or null.
func isNull(data json.RawMessage) bool {
	return len(data) == 0 || string(data) == "null"
}
