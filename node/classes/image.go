package classes

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"strings"

	"patchbay/engine"
	"patchbay/engine/safetensors"
	"patchbay/node/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/parallel"
)

// imageClasses are the rows that load and save pictures.
func imageClasses() []graph.Class {
	hidden := workflowTexts()
	return []graph.Class{
		{
			Name: "SaveImage", Display: "Save Image", Module: "nodes", Category: "image",
			Aliases: "save, save image, export image, output image, write image, download", Essential: "Basics", Output: true,
			Description: "Saves the pictures to the output folder.",
			Inputs: []graph.Input{
				graph.Link("images", "IMAGE", "the pictures to save"),
				graph.Number("filename_prefix", "STRING",
					"start of the file name; %width%, %height%, %year%, %month%, %day%, %hour%, %minute%, %second% are replaced",
					"default", "ComfyUI"),
			},
			Outputs: []graph.Slot{{Name: "images", Type: "IMAGE"}}, Hidden: hidden, Check: checkSavePrefix,
			Run: func(c *graph.Call) ([]any, error) { return saveImages(c, c.Str("filename_prefix"), "output") },
		},
		{
			Name: "PreviewImage", Display: "Preview Image", Module: "nodes", Category: "image",
			Aliases: "preview, preview image, show image, view image, display image, image viewer", Essential: "Basics",
			Output:      true,
			Description: "Saves the pictures to the temp folder.",
			Inputs:      []graph.Input{graph.Bare("images", "IMAGE")},
			Outputs:     []graph.Slot{{Name: "images", Type: "IMAGE"}},
			Hidden:      hidden, Run: func(c *graph.Call) ([]any, error) {
				return saveImages(c,
					"ComfyUI_temp_"+randomSuffix(), "temp")
			},
		},
		{
			Name: "LoadImage", Display: "Load Image", Module: "nodes", Category: "image",
			Aliases:   "load image, open image, import image, image input, upload image, read image, image loader",
			Essential: "Basics",
			Inputs:    []graph.Input{graph.File("image", files.KindInputImage).With("image_upload", true)},
			Outputs:   graph.Slots("IMAGE", "MASK"), Run: loadImage,
			Own: []string{"image"}, Check: checkFile("image", "Invalid image file: "), Change: fileChange("image"),
		},
	}
}

func saveImages(c *graph.Call, prefix, kind string) ([]any, error) {
	im := graph.Arg[*picture.Image](c, "images")
	return []any{im}, saveAs(c, im, prefix, kind, "images")
}

// saveAs hands pictures to the caller as PNG; key is where the editor finds them.
func saveAs(c *graph.Call, im *picture.Image, prefix, kind, key string) error {
	texts := metadataOf(c)
	for i := range im.B {
		p, err := files.CheckPrefix(strings.ReplaceAll(prefix, "%batch_num%", pyjson.Str(int64(i))), im.X, im.Y)
		if err != nil {
			return err
		}
		if err := c.Context.Err(); err != nil {
			return err
		}
		data := picture.EncodePNG(im.Bytes(i), im.Y, im.X, im.C, texts...)
		c.Save(files.Output{Kind: key, Prefix: p, Type: kind, Ext: ".png", Data: data, Width: im.X, Height: im.Y})
	}
	return nil
}

// metadataOf is what a saved file carries: the workflow as "prompt", then the extra texts.
func metadataOf(c *graph.Call) [][2]string {
	if c.Job.NoMetadata || c.Job.Workflow == nil {
		return nil
	}
	return append([][2]string{{"prompt", string(c.Job.Workflow.JSON())}}, picture.ExtraTexts(c.Job.ExtraPNGInfo)...)
}

// loadImage gives picture and mask (1 - alpha; zeros [1, 64, 64] where the file has no alpha).
func loadImage(c *graph.Call) ([]any, error) {
	name := c.Str("image")
	data, err := inputFile(c, "image", name)
	if err != nil {
		return nil, err
	}
	im, mask, err := picture.Decode(data)
	if err != nil {
		return nil, fault.Named(fault.CodeBadImage, "image", "%s: %v", name, err)
	}
	return []any{im, mask}, nil
}

// inputFile returns the content of a file that came with the job or lies in one of the picture folders.
func inputFile(c *graph.Call, field, name string) ([]byte, error) {
	if data, ok := c.Job.Inputs[name]; ok {
		return data, nil
	}
	path, err := c.Roots().Picture(field, name)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err == nil && info.Size() > maxInputFile {
		return nil, fault.Bad(field, "%s has %d MiB, the limit is %d", name, info.Size()>>20, maxInputFile>>20)
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Named(fault.CodeFileMissing, field, "%s is gone", name)
	}
	return data, err
}

// maxInputFile bounds files of the input folder.
const maxInputFile = 1 << 30

// checkFile is LoadImage's and LoadLatent's own validation: the file must be there.
func checkFile(field, complaint string) func(*graph.Job, *files.Roots, *pyjson.Object) (string, string) {
	return func(job *graph.Job, roots *files.Roots, in *pyjson.Object) (string, string) {
		raw, _ := in.Get(field)
		name, ok := raw.(string)
		if graph.IsLink(raw) {
			return "", ""
		}
		if !ok {
			return field, complaint + pyjson.Str(raw)
		}
		if _, sent := job.Inputs[name]; sent {
			return "", ""
		}
		if _, err := roots.Picture(field, name); err != nil {
			return field, complaint + name
		}
		return "", ""
	}
}

// checkSavePrefix refuses a filename_prefix that leaves the output folder before anything runs; ComfyUI notices when
// the picture is done.
func checkSavePrefix(_ *graph.Job, _ *files.Roots, in *pyjson.Object) (string, string) {
	raw, _ := in.Get("filename_prefix")
	prefix, ok := raw.(string)
	if !ok {
		return "", ""
	}
	if _, err := files.CheckPrefix(prefix, 0, 0); err != nil {
		return "filename_prefix", strings.TrimPrefix(err.Error(), "filename_prefix: ")
	}
	return "", ""
}

// fileChange makes the content of a file part of the cache signature.
func fileChange(field string) func(*graph.Call) (string, error) {
	return func(c *graph.Call) (string, error) {
		name, ok := c.Raw(field).(string)
		if !ok {
			return "", nil
		}
		data, err := inputFile(c, field, name)
		if err != nil {
			return "", err
		}
		sum := sha256.Sum256(data)
		return hex.EncodeToString(sum[:]), nil
	}
}

// encodeLatent writes SaveLatent's file.
func encodeLatent(s parallel.Latent, meta map[string]string) ([]byte, error) {
	var b bytes.Buffer
	values := engine.FromF32(s.Data, len(s.Data))
	err := safetensors.Write(&b, meta, []safetensors.Entry{
		{Name: "latent_tensor", DType: engine.F32, Shape: s.Shape(), Data: values.Buf.Host},
		{Name: "latent_format_version_0", DType: engine.F32, Shape: []int{0}},
	})
	return b.Bytes(), err
}

// randomSuffix makes PreviewImage's names unlike each other: five letters.
func randomSuffix() string {
	b := make([]byte, 5)
	for i := range b {
		b[i] = byte('a' + rand.IntN(26))
	}
	return string(b)
}
