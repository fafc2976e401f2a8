package classes

import "patchbay/node/graph"

// All builds the table of all classes. Those in extra are added (tests); a name that is there already panics.
func All(extra ...graph.Class) *graph.Catalogue {
	return graph.NewCatalogue(
		loadClasses(), ggufClasses(), textClasses(), conditioningClasses(), editClasses(),
		editTextClasses(), latentClasses(), vaeClasses(),
		sampleClasses(), customClasses(), modelClasses(), imageClasses(), sigmaClasses(), schedulerClasses(),
		samplerClasses(), guidanceClasses(), modelSamplingClasses(), areaClasses(), mixClasses(), clipLayerClasses(),
		loraClasses(), inpaintClasses(), tiledClasses(), resizeLatentClasses(), transformLatentClasses(),
		composeLatentClasses(), latentBatchClasses(), resizeImageClasses(), imageOpClasses(), maskClasses(),
		primitiveClasses(), styleClasses(), stitchClasses(), textFamilyClasses(), latentMathClasses(), imageBatchClasses(),
		easyCacheClasses(), controlNetClasses(), modelPatchClasses(), logicClasses(), editImageClasses(), showClasses(),
		expressionClasses(), generateClasses(), upscaleClasses(), cutLatentClasses(),
		extra,
	)
}
