// Package picture holds pictures and masks as arrays, and reads and writes them as image files with their texts: PNG
// with the workflow inside, what LoadImage decodes, JPEG previews. It knows no node, no model and no folder.
package picture
