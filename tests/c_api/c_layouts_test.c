/* KV layouts from C: named ones, one's own, and what a wrong description gets. */
#include <string.h>

#include <serinus_c.h>

#include "check.h"

static void named(void) {
  int found = 0;
  for (size_t i = 0; i < serinus_num_layouts(); ++i)
    found += strcmp(serinus_layout_name_at(i), "fp8_656") == 0;
  CHECK(found == 1);
  CHECK(serinus_layout_name_at(serinus_num_layouts()) == NULL);

  serinus_layout* layout = NULL;
  CHECK_OK(serinus_layout_create("fp8_656", NULL, &layout));
  CHECK(strcmp(serinus_layout_name(layout), "fp8_656") == 0);
  CHECK(serinus_layout_token_bytes(layout) == 656);
  CHECK(serinus_layout_page_size(layout) == 64);
  CHECK(serinus_layout_num_buffers(layout) == 1);
  CHECK(serinus_layout_page_bytes(layout, 0) == 64 * 656);
  CHECK(serinus_layout_page_bytes(layout, 1) == 0);
  CHECK(serinus_layout_num_segments(layout) == 3);
  serinus_segment s;
  memset(&s, 0, sizeof s);
  CHECK_OK(serinus_layout_segment(layout, 2, &s)); /* 64 x bf16 RoPE behind latent and scales */
  CHECK(strcmp(s.name, "rope") == 0 && s.role == 3);
  CHECK(s.offset == 528 && s.bytes == 128 && s.token_stride == 656 && s.head == -1);
  CHECK_FAILS(serinus_layout_segment(layout, 3, &s), SERINUS_VALUE_ERROR, "SRN6012");
  serinus_layout_destroy(layout);

  serinus_layout_options o = {.struct_size = sizeof o};
  o.page_size = 16;
  o.heads = 8;
  o.head_size = 128;
  o.dtype = SERINUS_BF16;
  CHECK_OK(serinus_layout_create("mha_nhd", &o, &layout));
  CHECK(serinus_layout_token_bytes(layout) == 2 * 8 * 128 * 2);
  serinus_layout_destroy(layout);
  serinus_layout_destroy(NULL);
}

static void wrong(void) {
  serinus_layout* layout = NULL;
  CHECK_FAILS(serinus_layout_create("fp8_657", NULL, &layout), SERINUS_VALUE_ERROR, "SRN1201");
  CHECK(strstr(serinus_last_error()->message, "fp8_657") != NULL);
  CHECK(strcmp(serinus_last_error()->value, "fp8_657") == 0);
  CHECK(layout == NULL);
  CHECK_FAILS(serinus_layout_create(NULL, NULL, &layout), SERINUS_VALUE_ERROR, "SRN6010");
  CHECK_FAILS(serinus_layout_create("fp8_656", NULL, NULL), SERINUS_VALUE_ERROR, "SRN6010");

  serinus_layout_options o = {.struct_size = 0};
  CHECK_FAILS(serinus_layout_create("fp8_656", &o, &layout), SERINUS_VALUE_ERROR, "SRN6011");
  o.struct_size = sizeof o;
  o.heads = 1;
  o.dtype = 9; /* one past the last */
  CHECK_FAILS(serinus_layout_create("mha_nhd", &o, &layout), SERINUS_VALUE_ERROR, "SRN6012");

  /* A longer struct of a newer header: fine while what this library does not know is zero. */
  struct {
    serinus_layout_options known;
    int64_t newer;
  } longer;
  memset(&longer, 0, sizeof longer);
  longer.known.struct_size = sizeof longer;
  CHECK_OK(serinus_layout_create("fp8_656", &longer.known, &layout));
  serinus_layout_destroy(layout);
  longer.newer = 1;
  CHECK_FAILS(serinus_layout_create("fp8_656", &longer.known, &layout), SERINUS_VALUE_ERROR,
              "SRN6011");
  CHECK(serinus_layout_name(NULL) == NULL && serinus_layout_num_segments(NULL) == 0);
}

static void custom(void) {
  const int64_t page_bytes[1] = {4 * 48};
  serinus_segment segments[2];
  memset(segments, 0, sizeof segments);
  segments[0].name = "latent";
  segments[0].role = 2;
  segments[0].token_stride = 48;
  segments[0].bytes = 32;
  segments[0].head = -1;
  segments[1] = segments[0];
  segments[1].name = "rope";
  segments[1].role = 3;
  segments[1].offset = 32;
  segments[1].bytes = 16;
  serinus_layout* layout = NULL;
  CHECK_OK(serinus_layout_create_custom("mine", 4, page_bytes, 1, segments, 2, &layout));
  CHECK(serinus_layout_token_bytes(layout) == 48);
  serinus_layout_destroy(layout);

  layout = NULL;
  segments[1].offset = 31; /* one byte into the latent */
  CHECK_FAILS(serinus_layout_create_custom("mine", 4, page_bytes, 1, segments, 2, &layout),
              SERINUS_VALUE_ERROR, "SRN1203");
  CHECK(layout == NULL);
  segments[1].role = 7;
  CHECK_FAILS(serinus_layout_create_custom("mine", 4, page_bytes, 1, segments, 2, &layout),
              SERINUS_VALUE_ERROR, "SRN6012");
}

int main(void) {
  named();
  wrong();
  custom();
  return failures();
}
