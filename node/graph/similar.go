package graph

import "strings"

// Similar returns the class whose name is nearest to name, "" if none is near.
func (c *Catalogue) Similar(name string) string { return Nearest(name, c.order) }

// Nearest returns the nearest of several names, "" if none is near: at most a quarter of the letters of name are to be
// inserted, left out or replaced (Levenshtein distance), case aside. Of equally near ones it is the first.
func Nearest(name string, names []string) string {
	if len(name) > 100 {
		return ""
	}
	best, least := "", len(name)/4+1
	for _, one := range names {
		if d := levenshtein(strings.ToLower(name), strings.ToLower(one)); d < least {
			best, least = one, d
		}
	}
	return best
}

// levenshtein counts the bytes to insert, leave out or replace between two strings, by Wagner and Fischer's recurrence.
func levenshtein(a, b string) int {
	row := make([]int, len(b)+1) // distances of the first i bytes of a to each beginning of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := corner
			if a[i] != b[j] {
				replaced++
			}
			corner = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
