"""The models' equations in torch: no ranks, no files but the bundle."""
