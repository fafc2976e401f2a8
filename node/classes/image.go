package classes

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"math/big"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/media"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/parallel/request"
)

// imageClasses returns the classes that load, save and show pictures.
func imageClasses() []graph.Class {
	kind := func(depth string, depths, spaces []string) []graph.Input {
		return []graph.Input{
			graph.Combo("bit_depth", "", depths...).With("default", depth).AsAdvanced(),
			graph.Combo("input_color_space", "", spaces...).With("default", "sRGB").AsAdvanced(),
		}
	}
	return graph.Rows(graph.Class{Category: "image"}, []graph.Class{
		{
			Name: "SaveImage", Display: "Save Image",
			Aliases: "save, save image, export image, output image, write image, download", Essential: "Basics", Output: true,
			Description: "Saves the pictures to the output folder.",
			Inputs: []graph.Input{
				graph.Link("images", "IMAGE", "the pictures to save"),
				graph.Number("filename_prefix", "STRING",
					"start of the file name; %width%, %height%, %year%, %month%, %day%, %hour%, %minute%, %second% are replaced",
					"default", "ComfyUI"),
			},
			Outputs: []graph.Slot{{Name: "images", Type: "IMAGE"}}, Hidden: workflowTexts(), Check: checkSavePrefix,
			Run: func(c *graph.Call) ([]any, error) { return saveImages(c, saved(c)) },
		},
		{
			Name: "PreviewImage", Display: "Preview Image",
			Aliases: "preview, preview image, show image, view image, display image, image viewer", Essential: "Basics",
			Output: true, Description: "Saves the pictures to the temp folder.",
			Inputs: []graph.Input{graph.Bare("images", "IMAGE")}, Outputs: []graph.Slot{{Name: "images", Type: "IMAGE"}},
			Hidden: workflowTexts(),
			Run:    func(c *graph.Call) ([]any, error) { return saveImages(c, shown()) },
		},
		{
			Name: "SaveImageWebsocket", Display: "Save Image (Websocket)", Module: "custom_nodes.websocket_image_save",
			Output: true, Description: "Sends the pictures to the client's websocket, without metadata.",
			Inputs: []graph.Input{graph.Bare("images", "IMAGE")}, Run: sendImages,
		},
		{
			Name: "LoadImage", Display: "Load Image",
			Aliases:   "load image, open image, import image, image input, upload image, read image, image loader",
			Essential: "Basics", Inputs: []graph.Input{graph.File("image", files.KindInputImage).With("image_upload", true)},
			Outputs: graph.Slots("IMAGE", "MASK"), Run: loadImage, SelfChecked: []string{"image"},
			Check: checkFile("image", "Invalid image file: "), Change: fileChange("image"),
		},
		{
			Name: "SaveImageAdvanced", Display: "Save Image (Advanced)", Module: "comfy_extras.nodes_images",
			Aliases: "save, save image, export image, output image, write image", Essential: "Basics", Output: true,
			Description: "Saves the pictures to the output folder.",
			Inputs: []graph.Input{
				graph.Link("images", "IMAGE", "the pictures to save"),
				savePrefix("ComfyUI"),
				graph.Branch("format", "", graph.Alternative{
					Key: "png", Inputs: kind("8-bit", []string{"8-bit", "16-bit"}, []string{"sRGB"}),
				}, graph.Alternative{
					Key:    "exr",
					Inputs: kind("32-bit float", []string{"32-bit float"}, []string{"sRGB", "HDR", "linear"}),
				}),
			},
			Outputs: []graph.Slot{{Name: "images", Type: "IMAGE"}}, Hidden: workflowTexts(), Run: saveAdvanced,
			Check: func(job *graph.Job, roots *files.Roots, in *pyjson.Object) (string, string) {
				for name, only := range map[string]string{"format": "png", "format.bit_depth": "8-bit"} {
					if v, ok := in.At(name).(string); ok && v != only {
						return name, v + " is not supported, only " + only
					}
				}
				return checkSavePrefix(job, roots, in)
			},
		},
		{
			Name: "SaveAnimatedPNG", Display: "Save Animated PNG", Module: "comfy_extras.nodes_images", Output: true,
			Description: "Saves the pictures to the output folder as one animation.",
			Inputs: []graph.Input{
				graph.Link("images", "IMAGE", ""),
				savePrefix("ComfyUI"),
				graph.Float("fps", "pictures a second", 6, 0.01, 1000, 0.01),
				graph.Int("compress_level", "higher files are smaller and take longer", 4, 0, 9, 0).AsAdvanced(),
			},
			Outputs: []graph.Slot{{Name: "images", Type: "IMAGE"}}, Hidden: workflowTexts(), Check: checkSavePrefix,
			Run: saveAnimated,
		},
		{
			Name: "SaveAnimatedWEBP", Display: "Save Animated WEBP", Module: "comfy_extras.nodes_images", Output: true,
			Description: "Saves the pictures to the output folder as one animation.",
			Inputs: []graph.Input{
				graph.Link("images", "IMAGE", ""),
				savePrefix("ComfyUI"),
				graph.Float("fps", "pictures a second", 6, 0.01, 1000, 0.01), graph.Bool("lossless", "", true),
				graph.Int("quality", "lower files are smaller and worse; of lossless ones: made faster", 80, 0, 100, 0),
				graph.Combo("method", "slower files are smaller", "default", "fastest", "slowest"),
			},
			Outputs: []graph.Slot{{Name: "images", Type: "IMAGE"}}, Hidden: workflowTexts(),
			Check: needsFFmpeg("images", checkSavePrefix), Run: saveWebP,
		},
		{
			Name: "ImageCompare", Display: "Compare Images", Module: "comfy_extras.nodes_image_compare",
			Essential: "Image Tools", Experimental: true, Output: true, Description: "Shows two pictures behind a slider.",
			Inputs: []graph.Input{
				graph.Number("compare_view", "IMAGECOMPARE", "", "socketless", true).AsLater(),
				graph.Link("image_a", "IMAGE", "").AsOptional(), graph.Link("image_b", "IMAGE", "").AsOptional(),
			},
			Hidden: workflowTexts(), Run: compareImages,
		},
		{
			Name: "MaskPreview", Display: "Preview Mask", Module: "comfy_extras.nodes_mask", Category: "image/mask",
			Aliases: "show mask, view mask, inspect mask, debug mask", Output: true,
			Description: "Saves the masks to the temp folder, as pictures.",
			Inputs:      []graph.Input{graph.Link("mask", "MASK", "")}, Hidden: workflowTexts(),
			Outputs: []graph.Slot{{Name: "mask", Type: "MASK"}}, Run: func(c *graph.Call) ([]any, error) {
				m := c.Mask("mask")
				return []any{m}, saveTemp(c, grey(m))
			},
		},
		{
			Name: "ImageCropV2", Display: "Crop Image", Module: "comfy_extras.nodes_images", Category: "image/transform",
			Aliases: "crop, cut, trim", Essential: "Image Tools", Shows: true,
			Description: "Cuts a rectangle out of the pictures.",
			Inputs: []graph.Input{
				graph.Link("image", "IMAGE", ""),
				graph.Number("crop_region", "BOUNDING_BOX", "", "default",
					pyjson.NewObject("x", int64(0), "y", int64(0), "width", int64(512), "height", int64(512)),
					"socketless", true, "component", "ImageCrop"),
			},
			Outputs: graph.Slots("IMAGE"), Run: cropRegion,
		},
	})
}

// savePrefix is the filename_prefix of new-style classes.
func savePrefix(preset string) graph.Input {
	return graph.Number("filename_prefix", "STRING", "start of the file name, as in SaveImage", "default", preset,
		"multiline", false)
}

// saved and shown say how pictures are handed to the caller that go to the output folder, and those that are shown.
func saved(c *graph.Call) files.Output {
	return files.Output{Kind: "images", Prefix: c.Str("filename_prefix"), Type: "output"}
}

func shown() files.Output { return files.Output{Kind: "images", Prefix: tempPrefix(), Type: "temp"} }

func saveImages(c *graph.Call, as files.Output) ([]any, error) {
	im := c.Image("images")
	return []any{im}, saveAs(c, im, as)
}

// saveAs hands pictures to the caller as PNG, with what as says.
func saveAs(c *graph.Call, im *picture.Image, as files.Output) error {
	texts := metadataOf(c)
	for i := range im.B {
		p, err := files.CheckPrefix(strings.ReplaceAll(as.Prefix, "%batch_num%", pyjson.Str(int64(i))), im.X, im.Y)
		if err != nil {
			return err
		}
		if err := c.Context.Err(); err != nil {
			return err
		}
		data := picture.EncodePNG(im.Bytes(i), im.Y, im.X, im.C, texts...)
		c.Save(files.Output{
			Kind: as.Kind, Prefix: p, Type: as.Type, Ext: ".png", Bare: as.Bare, Data: data, Width: im.X, Height: im.Y,
		})
	}
	return nil
}

// sendImages hands pictures to the caller for the client's websocket: carriers that have one send them there.
func sendImages(c *graph.Call) ([]any, error) {
	im := c.Image("images")
	for i := range im.B {
		data := picture.EncodePNG(im.Bytes(i), im.Y, im.X, im.C)
		c.Save(files.Output{
			Kind: files.KindSocket, Prefix: tempPrefix(), Type: "temp", Ext: ".png", Data: data, Width: im.X, Height: im.Y,
		})
	}
	return []any{}, nil
}

// saveAnimated hands the pictures to the caller as one animated PNG.
func saveAnimated(c *graph.Call) ([]any, error) {
	im := c.Image("images")
	p, err := files.CheckPrefix(c.Str("filename_prefix"), im.X, im.Y)
	if err != nil {
		return nil, err
	}
	data := picture.EncodeAPNG(im.B, im.Y, im.X, im.C, int(1000/c.Float("fps")), c.Whole("compress_level"), im.Bytes,
		metadataOf(c)...)
	showAnimation(c, im, p, ".png", data)
	return []any{im}, c.Context.Err()
}

// showAnimation hands a file of all pictures to the caller. One of a single picture is not called animated.
func showAnimation(c *graph.Call, im *picture.Image, prefix, ext string, data []byte) {
	c.Save(files.Output{Kind: "images", Prefix: prefix, Type: "output", Ext: ext, Data: data, Width: im.X, Height: im.Y})
	if im.B > 1 {
		c.Show("animated", []any{true})
	}
}

// saveWebP hands the pictures to the caller as one animated WebP.
func saveWebP(c *graph.Call) ([]any, error) {
	im := c.Image("images")
	p, err := files.CheckPrefix(c.Str("filename_prefix"), im.X, im.Y)
	if err != nil {
		return nil, err
	}
	lossless := map[bool]string{true: "1", false: "0"}[c.Flag("lossless")]
	method := map[string]string{"default": "4", "fastest": "0", "slowest": "6"}[c.Str("method")]
	frames := framesOf(im, big.NewRat(1000, int64(1000/c.Decimal("fps"))), 8, min(max(im.C, 3), 4))
	data, err := media.Encode(c.Context, frames, nil, nil, "-c:v", "libwebp_anim", "-pix_fmt", "bgra", "-lossless",
		lossless, "-quality", strconv.Itoa(c.Whole("quality")), "-compression_level", method, "-loop", "0", "-f", "webp")
	if err != nil {
		return nil, err
	}
	if data, err = picture.WithWebPTexts(data, im.X, im.Y, metadataOf(c)...); err != nil {
		return nil, err
	}
	showAnimation(c, im, p, ".webp", data)
	return []any{im}, nil
}

// metadataOf returns the metadata of a saved file: the workflow as "prompt", then the extra texts.
func metadataOf(c *graph.Call) [][2]string {
	if c.Job.NoMetadata || c.Job.Workflow == nil {
		return nil
	}
	return append([][2]string{{"prompt", string(c.Job.Workflow.JSON())}}, picture.ExtraTexts(c.Job.ExtraPNGInfo)...)
}

// loadImage returns the picture and its mask: 1 - alpha, or zeros [1, 64, 64] if the file has no alpha.
func loadImage(c *graph.Call) ([]any, error) {
	im, mask, err := decoded(c)
	return []any{im, mask}, err
}

// decoded reads the picture file that the input "image" names.
func decoded(c *graph.Call) (*picture.Image, *picture.Mask, error) {
	name := c.Str("image")
	data, err := inputFile(c, "image", name)
	if err != nil {
		return nil, nil, err
	}
	im, mask, err := picture.Decode(data)
	if err != nil {
		return nil, nil, fault.Named(fault.BadImage, "image", "%s: %v", name, err)
	}
	return im, mask, nil
}

// inputFile returns the content of a file that was sent with the job or is in one of the input folders.
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
		return nil, fault.Named(fault.FileMissing, field, "%s is gone", name)
	}
	return data, err
}

// maxInputFile bounds the bytes of an input file.
const maxInputFile = 1 << 30

// checkFile is the validation that LoadImage and LoadLatent define themselves: the file must exist.
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

// checkSavePrefix rejects, before anything runs, a filename_prefix that points outside the output folder. ComfyUI only
// notices when the picture is done.
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

// fileChange makes the content of an input file part of the cache signature.
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

// encodeLatent returns the content of SaveLatent's file.
func encodeLatent(s request.Latent, meta map[string]string) ([]byte, error) {
	var b bytes.Buffer
	values := engine.FromF32(s.Data, len(s.Data))
	err := safetensors.Write(&b, meta, []safetensors.Tensor{
		{Name: "latent_tensor", DType: engine.F32, Shape: s.Shape(), Data: datafile.Of(values.Buf.Host)},
		{Name: "latent_format_version_0", DType: engine.F32, Shape: []int{0}},
	})
	return b.Bytes(), err
}

// tempPrefix returns PreviewImage's file name prefix with five random letters.
func tempPrefix() string {
	b := []byte("ComfyUI_temp_")
	for range 5 {
		b = append(b, byte('a'+rand.IntN(26)))
	}
	return string(b)
}

// workflowTexts returns the hidden inputs of classes that embed the workflow in their files.
func workflowTexts() []graph.Hidden {
	return []graph.Hidden{{Name: "prompt", Kind: "PROMPT"}, {Name: "extra_pnginfo", Kind: "EXTRA_PNGINFO"}}
}

func saveAdvanced(c *graph.Call) ([]any, error) {
	if kind, depth := c.Chosen("format"), c.Str("format.bit_depth"); kind != "png" || depth != "8-bit" {
		return nil, fault.Bad("format", "%s of %s is not supported, only png of 8-bit", kind, depth)
	}
	as := saved(c)
	as.Bare = true
	return saveImages(c, as)
}

// compareImages returns both inputs as temporary files, under a_images and b_images, where the editor looks for them.
func compareImages(c *graph.Call) ([]any, error) {
	for _, side := range []string{"a", "b"} {
		if !c.Given("image_" + side) {
			c.Show(side+"_images", []any{})
			continue
		}
		im := c.Image("image_" + side)
		if err := saveAs(c, im, files.Output{
			Kind: side + "_images", Prefix: "comfy.compare." + side, Type: "temp",
		}); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// saveTemp shows pictures in the way of classes other than PreviewImage.
func saveTemp(c *graph.Call, im *picture.Image) error {
	c.Show("animated", []any{false})
	return saveAs(c, im, shown())
}

// cropRegion crops to a region that the editor draws.
func cropRegion(c *graph.Call) ([]any, error) {
	im, region := c.Image("image"), map[string]int{"x": 0, "y": 0, "width": 512, "height": 512}
	given, ok := c.Raw("crop_region").(*pyjson.Object)
	if !ok {
		return nil, fault.Bad("crop_region", "takes an object {x, y, width, height}, got %s",
			pyjson.Excerpt(pyjson.Repr(c.Raw("crop_region"))))
	}
	for _, name := range []string{"x", "y", "width", "height"} {
		v, there := given.Get(name)
		n, whole := v.(int64)
		lowest := map[bool]int64{true: 0, false: 1}[name == "x" || name == "y"]
		if there && (!whole || n < lowest || n > 16384) {
			return nil, fault.Bad("crop_region", "%s is %s, want a whole number of %d to 16384", name,
				pyjson.Excerpt(pyjson.Repr(v)), lowest)
		}
		if there {
			region[name] = int(n)
		}
	}
	out := cropped(im, region["x"], region["y"], region["width"], region["height"])
	return []any{out}, saveTemp(c, out)
}
