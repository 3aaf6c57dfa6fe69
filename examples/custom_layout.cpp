// A layout of one's own takes ten lines: here pages of 32 tokens with all latents first, then the
// RoPE parts, then a scale a token, padded to 256 bytes.
#include <cstdio>

#include <serinus/kv_layout.h>

serinus::KvLayout my_layout() {
  serinus::KvLayout layout;
  layout.name = "mine";
  layout.page_size = 32;
  layout.page_bytes = {(32 * (512 + 128 + 4) + 255) / 256 * 256};
  //                    name      what it is                    buffer offset  stride bytes head
  layout.segments = {{"latent", serinus::SegmentRole::latent, 0, 0, 512, 512, -1, "512 x e4m3"},
                     {"rope", serinus::SegmentRole::rope, 0, 32 * 512, 128, 128, -1, "64 x bf16"},
                     {"scale", serinus::SegmentRole::scale, 0, 32 * 640, 4, 4, -1, "float32"}};
  layout.validate();
  return layout;
}

int main() {
  const serinus::KvLayout layout = my_layout();
  std::printf("%s", serinus::draw_byte_map(layout).c_str());  // is it what was meant?
  return layout.token_bytes() == 644 ? 0 : 1;
}
