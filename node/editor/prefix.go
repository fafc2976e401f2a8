package editor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"patchbay/node/pyjson"
)

// saving are the classes in whose filename_prefix the editor replaces dates and values of widgets. It finds nodes of
// these only by their titles.
var saving = []string{"SaveImage", "SaveImageAdvanced", "SaveLatent"}

// alias is the property with the name by which a filename_prefix finds a node.
const alias = "Node name for S&R"

var (
	variable  = regexp.MustCompile(`%([^%]+)%`)
	datePart  = regexp.MustCompile(`dd?|MM?|hh?|mm?|ss?|yyy?y?`)
	unfitting = regexp.MustCompile(`[/?<>\\:*|"\x00-\x1f\x7f]`)
)

// typed returns what the editor sends for a value that stands in a widget.
func (c *conversion) typed(n *node, widget string, value any) any {
	if text, isText := value.(string); isText && widget == "filename_prefix" && slices.Contains(saving, n.kind) {
		return c.prefix(text)
	}
	return value
}

// maxPrefix bounds the bytes that take the place of variables in a filename_prefix, more than any path may have.
const maxPrefix = 1 << 16

// found is a node and the use of the canvas that it is on.
type found struct {
	*frame
	*node
}

// prefix replaces %date:FORMAT% and %NODE.WIDGET% in a filename_prefix as the editor does on sending. What it does not
// know stays as it is, also %width%, %year% and others, which are replaced when the file is saved.
func (c *conversion) prefix(text string) string {
	left := maxPrefix
	return variable.ReplaceAllStringFunc(text, func(match string) string {
		part := strings.Split(match[1:len(match)-1], ".")
		out := match
		if format, ok := strings.CutPrefix(part[0], "date:"); ok && len(part) != 2 {
			out = formatted(format, c.now)
		} else if at, ok := c.find(part[0]); ok && len(part) == 2 {
			if value, ok := c.widget(at.frame, at.node, part[1]); ok {
				if value, ok := written(value); ok {
					out = unfitting.ReplaceAllString(value, "_")
				}
			}
		}
		if left -= len(out); left < 0 {
			return match
		}
		return out
	})
}

// find returns the first node with a name: the name in its properties, which is its class unless another one was
// given, or else its title. Nodes of subgraphs come before their instances.
func (c *conversion) find(name string) (found, bool) {
	if c.aliases == nil {
		c.aliases, c.titles = map[string]found{}, map[string]found{}
		c.index(c.root)
	}
	at, ok := c.aliases[name]
	if !ok {
		at, ok = c.titles[name]
	}
	return at, ok
}

func (c *conversion) index(f *frame) {
	for _, n := range f.listed {
		if child := f.children[n.id]; child != nil {
			c.index(child)
		}
		if name := c.aliasOf(n); name != "" && c.aliases[name].node == nil {
			c.aliases[name] = found{f, n}
		}
		if name := c.titleOf(n); c.titles[name].node == nil {
			c.titles[name] = found{f, n}
		}
	}
}

func (c *conversion) aliasOf(n *node) string {
	if v, ok := n.properties.Get(alias); ok || slices.Contains(saving, n.kind) || c.describe(n.kind) == nil {
		return str(v)
	}
	return n.kind
}

func (c *conversion) titleOf(n *node) string {
	return cmp.Or(n.title, c.describe(n.kind).Text("display_name"), n.kind)
}

// widget returns the value that a node shows under a name.
func (c *conversion) widget(f *frame, n *node, name string) (any, bool) {
	if child := f.children[n.id]; child != nil {
		if i := named(child.inputs, name); i >= 0 {
			return c.promoted(child, i)
		}
		return nil, false
	}
	if n.kind == typePrimitive {
		return f.primitive(n)
	}
	return c.widgets(f, n).Get(name)
}

// written returns a value as JavaScript writes it; false for lists and objects.
func written(v any) (string, bool) {
	switch v := v.(type) {
	case nil:
		return "", true
	case string:
		return v, true
	case bool:
		return strconv.FormatBool(v), true
	case float64:
		text, err := json.Marshal(v + 0) // in the form of JavaScript; -0 is 0
		return string(text), err == nil
	case int64, uint64, *big.Int:
		number, err := pyjson.Float(v)
		text, ok := written(number)
		return text, ok && err == nil
	}
	return "", false
}

// formatted returns a time in the editor's format: d, M, h, m and s, doubled for two digits, yy and yyyy. Everything
// else stays as it is.
func formatted(format string, now time.Time) string {
	number := map[byte]int{'d': now.Day(), 'M': int(now.Month()), 'h': now.Hour(), 'm': now.Minute(), 's': now.Second()}
	return datePart.ReplaceAllStringFunc(format, func(part string) string {
		year := strconv.Itoa(now.Year())
		switch part {
		case "yy":
			return year[min(2, len(year)):]
		case "yyyy":
			return year
		case "yyy":
			return part
		}
		return fmt.Sprintf("%0*d", len(part), number[part[0]])
	})
}
