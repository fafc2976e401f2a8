package classes

import (
	"context"
	"errors"
	"strings"
	"unicode/utf8"

	"patchbay/fault"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/node/pyregex"
)

// maxText is the largest text in bytes that the classes that combine texts give.
const maxText = 16 << 20

// stringClasses returns the classes that work on texts, in the characters of which Python counts.
func stringClasses() []graph.Class {
	text := func(name string) graph.Input { return graph.Number(name, "STRING", "", "multiline", true) }
	line := func(name string) graph.Input { return graph.Number(name, "STRING", "", "multiline", false) }
	sensitive := graph.Bool("case_sensitive", "", true).AsAdvanced()
	flags := func() []graph.Input {
		return []graph.Input{
			graph.Bool("case_insensitive", "", true).AsAdvanced(),
			graph.Bool("multiline", "^ and $ fit at every line", false).AsAdvanced(),
			graph.Bool("dotall", "a dot fits line feeds too", false).AsAdvanced(),
		}
	}
	truth := func(name string) []graph.Slot { return []graph.Slot{{Name: name, Type: "BOOLEAN"}} }
	given := func(f func(c *graph.Call) any) func(*graph.Call) ([]any, error) {
		return func(c *graph.Call) ([]any, error) { return []any{f(c)}, nil }
	}
	replaceFlags := flags()
	for i := range replaceFlags {
		replaceFlags[i] = replaceFlags[i].AsOptional()
	}
	return graph.Rows(graph.Class{
		Module: "comfy_extras.nodes_string", Category: "text", Outputs: graph.Slots("STRING"),
	}, []graph.Class{
		{
			Name: "StringConcatenate", Display: "Concatenate Text",
			Aliases: "concatenate, text concat, join text, merge text, combine strings, string concat, append text, " +
				"combine text",
			Inputs: []graph.Input{
				text("string_a"), text("string_b"), graph.Number("delimiter", "STRING", "", "default", "", "multiline", false),
			},
			Run: func(c *graph.Call) ([]any, error) {
				return bounded("string_b", len(c.Str("string_a"))+len(c.Str("string_b"))+len(c.Str("delimiter")),
					func() string { return c.Str("string_a") + c.Str("delimiter") + c.Str("string_b") })
			},
		},
		{
			Name: "StringSubstring", Display: "Substring", Aliases: "substring, extract text, text portion",
			Inputs: []graph.Input{
				text("string"), graph.Number("start", "INT", "below 0: from the end"), graph.Number("end", "INT", "excluded"),
			},
			Run: given(func(c *graph.Call) any {
				s := []rune(c.Str("string"))
				from, to := sliced(len(s), c.Integer("start"), c.Integer("end"))
				return string(s[from:to])
			}),
		},
		{
			Name: "StringLength", Display: "Text Length", Aliases: "character count, text size, string length",
			Inputs: []graph.Input{text("string")}, Outputs: []graph.Slot{{Name: "length", Type: "INT"}},
			Run: given(func(c *graph.Call) any { return int64(utf8.RuneCountInString(c.Str("string"))) }),
		},
		{
			Name: "CaseConverter", Display: "Convert Text Case",
			Aliases: "case converter, text case, uppercase, lowercase, capitalize",
			Inputs: []graph.Input{
				text("string"), graph.Combo("mode", "", "UPPERCASE", "lowercase", "Capitalize", "Title Case"),
			},
			Run: given(func(c *graph.Call) any {
				change := map[string]func(string) string{
					"UPPERCASE": pyjson.Upper, "lowercase": pyjson.Lower, "Capitalize": pyjson.Capitalized,
					"Title Case": pyjson.Titled,
				}[c.Str("mode")]
				if change == nil {
					return c.Str("string")
				}
				return change(c.Str("string"))
			}),
		},
		{
			Name: "StringTrim", Display: "Trim Text",
			Aliases: "trim, clean whitespace, remove whitespace, remove spaces, strip",
			Inputs:  []graph.Input{text("string"), graph.Combo("mode", "", "Both", "Left", "Right")},
			Run: given(func(c *graph.Call) any {
				s, mode := c.Str("string"), c.Str("mode")
				if mode == "Both" || mode == "Left" {
					s = strings.TrimLeftFunc(s, pyjson.IsSpace)
				}
				if mode == "Both" || mode == "Right" {
					s = strings.TrimRightFunc(s, pyjson.IsSpace)
				}
				return s
			}),
		},
		{
			Name: "StringReplace", Display: "Replace Text", Aliases: "replace, find and replace, substitute, swap text",
			Inputs: []graph.Input{text("string"), text("find"), text("replace")},
			Run: func(c *graph.Call) ([]any, error) {
				s, find, replace := c.Str("string"), c.Str("find"), c.Str("replace")
				longer := len(replace) - len(find)
				return bounded("replace", len(s)+strings.Count(s, find)*longer,
					func() string { return strings.ReplaceAll(s, find, replace) })
			},
		},
		{
			Name: "StringContains", Display: "Contains Text", Aliases: "contains, text includes, string includes",
			Inputs: []graph.Input{text("string"), text("substring"), sensitive}, Outputs: truth("contains"),
			Run: given(func(c *graph.Call) any {
				return strings.Contains(compared(c, "string"), compared(c, "substring"))
			}),
		},
		{
			Name: "StringCompare", Display: "Compare Text",
			Aliases: "compare, text match, string equals, starts with, ends with",
			Inputs: []graph.Input{
				text("string_a"), text("string_b"), graph.Combo("mode", "", "Starts With", "Ends With", "Equal"), sensitive,
			},
			Outputs: truth("BOOLEAN"),
			Run: given(func(c *graph.Call) any {
				a, b := compared(c, "string_a"), compared(c, "string_b")
				switch c.Str("mode") {
				case "Starts With":
					return strings.HasPrefix(a, b)
				case "Ends With":
					return strings.HasSuffix(a, b)
				}
				return a == b
			}),
		},
		{
			Name: "RegexMatch", Display: "Match Text",
			Aliases: "regex match, regex, pattern match, text contains, string match",
			Inputs:  append([]graph.Input{text("string"), text("regex_pattern")}, flags()...), Outputs: truth("matches"),
			Run: func(c *graph.Call) ([]any, error) {
				found, err := matches(c, 1)
				return []any{len(found) > 0}, regexFault(err, true)
			},
		},
		{
			Name: "RegexExtract", Display: "Extract Text",
			Aliases: "regex extract, regex, pattern extract, text parser, parse text",
			Inputs: append(append([]graph.Input{
				text("string"), text("regex_pattern"),
				graph.Combo("mode", "", "First Match", "All Matches", "First Group", "All Groups"),
			}, flags()...), graph.Int("group_index", "0: the whole match", 1, 0, 100, 0).AsAdvanced()),
			Run: regexExtract,
		},
		{
			Name: "RegexReplace", Display: "Replace Text (Regex)",
			Description: "Replaces what a regular expression of Python finds; \\1 stands for its first group.",
			Aliases:     "regex replace, regex, pattern replace, substitution",
			Inputs: append(append([]graph.Input{text("string"), text("regex_pattern"), text("replace")}, replaceFlags...),
				graph.Int("count", "at most; 0: all", 0, 0, 100, 0).AsAdvanced().AsOptional()),
			Run: regexReplace,
		},
		{
			Name: "JsonExtractString", Display: "Extract Text from JSON",
			Aliases: "json, extract json, parse json, json value, read json",
			Inputs:  []graph.Input{text("json_string"), line("key")}, Run: jsonExtract,
		},
	})
}

// bounded returns a text that is so many bytes long, unless that is more than maxText.
func bounded(field string, bytes int, text func() string) ([]any, error) {
	if bytes > maxText {
		return nil, fault.Bad(field, "the result has %d bytes, at most %d are allowed", bytes, maxText)
	}
	return []any{text()}, nil
}

// compared returns a text as it is compared.
func compared(c *graph.Call, name string) string {
	if c.Flag("case_sensitive") {
		return c.Str(name)
	}
	return pyjson.Lower(c.Str(name))
}

// pattern compiles the pattern of a node.
func pattern(c *graph.Call) (*pyregex.Pattern, error) {
	set := func(name string, preset bool) bool {
		if !c.Given(name) {
			return preset
		}
		return c.Flag(name)
	}
	return pyregex.Compile(c.Str("regex_pattern"), pyregex.Flags{
		IgnoreCase: set("case_insensitive", true), MultiLine: set("multiline", false), DotAll: set("dotall", false),
	})
}

func matches(c *graph.Call, most int) ([]pyregex.Match, error) {
	p, err := pattern(c)
	if err != nil {
		return nil, err
	}
	return p.Find(c.Context, c.Str("string"), most)
}

// regexFault names the pattern in an error of pyregex. lenient drops the errors that Python's re has too.
func regexFault(err error, lenient bool) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case lenient && !errors.Is(err, pyregex.ErrUnsupported):
		return nil
	}
	return fault.Bad("regex_pattern", "%v", err)
}

// regexExtract returns the first match or all of them, a line each; of a pattern with groups, "All Matches" gives the
// first group. A group that took no part is an empty line there, None as "First Group", and else an error.
func regexExtract(c *graph.Call) ([]any, error) {
	mode, group, most := c.Str("mode"), c.Whole("group_index"), 0
	if mode == "First Match" || mode == "First Group" {
		most = 1
	}
	found, err := matches(c, most)
	if err != nil {
		return []any{""}, regexFault(err, true)
	}
	var lines []string
	for _, m := range found {
		n := 0
		switch {
		case mode == "All Matches":
			n = min(1, m.Groups())
		case mode == "First Match":
		case m.Groups() < group || m.Groups() == 0 && mode == "All Groups":
			continue
		default:
			n = group
		}
		s, ok := m.Group(n)
		switch {
		case !ok && mode == "First Group":
			return []any{nil}, nil
		case !ok && mode == "All Groups":
			return nil, fault.Bad("group_index", "group %d took no part in a match", n)
		}
		lines = append(lines, s)
	}
	return []any{strings.Join(lines, "\n")}, nil
}

func regexReplace(c *graph.Call) ([]any, error) {
	p, err := pattern(c)
	if err != nil {
		return nil, regexFault(err, false)
	}
	most := 0
	if c.Given("count") {
		most = c.Whole("count")
	}
	s, err := p.Replace(c.Context, c.Str("string"), c.Str("replace"), most, maxText)
	return []any{s}, regexFault(err, false)
}

// jsonExtract returns the value of a key as Python's str shows it: empty for null, if there is no such key, or if the
// text is no JSON object.
func jsonExtract(c *graph.Call) ([]any, error) {
	v, err := pyjson.Decode([]byte(c.Str("json_string")))
	if pyjson.TooLarge(err) {
		return nil, fault.Bad("json_string", "%v", err)
	}
	o, _ := v.(*pyjson.Object)
	if value := o.At(c.Str("key")); err == nil && value != nil {
		return []any{pyjson.Str(value)}, nil
	}
	return []any{""}, nil
}
