package classes

import (
	"encoding/json"
	"math"
	"os"
	"strconv"
	"testing"
)

// TestExpressionsAsInPython compares with what CPython 3.11 made of the expressions of testdata/expressions.json: text,
// the value as float, as int ("" if large), its type; three empty strings for what is a syntax error or an unknown
// name.
func TestExpressionsAsInPython(t *testing.T) {
	text, err := os.ReadFile("testdata/expressions.json")
	if err != nil {
		t.Fatal(err)
	}
	var rows [][4]string
	if err := json.Unmarshal(text, &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) < 500 {
		t.Fatalf("only %d expressions", len(rows))
	}
	evaluate := func(text string) (v any, refused any) {
		defer func() { refused = recover() }()
		e := &expr{tokens: exprToken.FindAllString(text, -1)}
		f := e.choice(0)
		if len(e.tokens) > 0 {
			wrong("%s is not expected", e.tokens[0])
		}
		return f(), nil
	}
	for _, row := range rows {
		v, refused := evaluate(row[0])
		if why, ours := refused.(exprError); refused != nil || row[3] == "" {
			if row[3] != "" || !ours {
				t.Errorf("%s: got the value %v and the error %q (%v), want %s %s", row[0], v, why, refused, row[3], row[1])
			}
			continue
		}
		want, err := strconv.ParseFloat(row[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		_, isFloat := v.(float64)
		if got := float(v); got != want || math.Signbit(got) != math.Signbit(want) || isFloat != (row[3] == "float") {
			t.Errorf("%s: got %T %v, want %s %s", row[0], v, v, row[3], row[1])
		}
		if row[2] != "" && strconv.FormatInt(whole(v), 10) != row[2] {
			t.Errorf("%s: got the whole number %d, want %s", row[0], whole(v), row[2])
		}
	}
}
