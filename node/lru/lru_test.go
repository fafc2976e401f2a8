package lru

import (
	"slices"
	"testing"
)

func TestLRUKeepsToItsBudget(t *testing.T) {
	var dropped []string
	c := New(10, func(v string) { dropped = append(dropped, v) })
	c.Put("a", "A", 4)
	c.Put("b", "B", 4)
	if _, ok := c.Get("a"); !ok {
		t.Fatal("a is gone")
	}
	c.Put("c", "C", 4) // b is the least recently used
	if !slices.Equal(dropped, []string{"B"}) || c.used != 8 {
		t.Errorf("dropped %v, %d bytes held, want B and 8", dropped, c.used)
	}
	c.Put("a", "A2", 1)
	c.Put("big", "BIG", 100) // larger than the budget: kept alone, for the current job
	if v, ok := c.Get("big"); !ok || v != "BIG" || c.used != 100 {
		t.Errorf("the big value: %q, %v, %d bytes", v, ok, c.used)
	}
	c.Clear()
	if c.used != 0 || len(dropped) != 5 {
		t.Errorf("after clear: %d bytes, dropped %v", c.used, dropped)
	}
}
