/* Version, the last error, and the error reference, from C. */
#include <stdlib.h>
#include <string.h>

#include <serinus_c.h>

#include "check.h"

static int text_is(serinus_text t, const char* want) {
  return t.size == strlen(want) && memcmp(t.data, want, t.size) == 0;
}

int main(void) {
  CHECK(serinus_c_abi_version() == SERINUS_C_ABI_VERSION);
  CHECK(strlen(serinus_version()) >= strlen("0.0.0"));

  /* Before the first failure. */
  CHECK(serinus_last_error()->status == SERINUS_OK);
  CHECK(strcmp(serinus_last_error()->id, "") == 0);
  CHECK(strcmp(serinus_last_error()->message, "") == 0);

  /* The reference: every page has its texts, in the order of the ids, and is found by id and slug.
   */
  const size_t n = serinus_num_error_pages();
  CHECK(n > 10);
  CHECK(serinus_error_page_at(n) == NULL);
  for (size_t i = 0; i < n; ++i) {
    const serinus_error_page* page = serinus_error_page_at(i);
    CHECK(page != NULL);
    CHECK(page->meaning.size > 0 && page->message.size > 0 && page->guard.size > 0);
    CHECK(page->num_situations > 0 && page->situations[page->num_situations - 1].size > 0);
    CHECK(page->num_solutions > 0 && page->solutions[0].size > 0);
    CHECK(serinus_find_error(page->id.data, page->id.size) == page);
    CHECK(serinus_find_error(page->slug.data, page->slug.size) == page);
    if (i > 0) CHECK(memcmp(serinus_error_page_at(i - 1)->id.data, page->id.data, 7) < 0);
  }
  const serinus_error_page* page = serinus_find_error("SRN6010", 7);
  CHECK(page != NULL && text_is(page->slug, "c-null-argument"));
  CHECK(page != NULL && text_is(page->exception, "ValueError"));
  CHECK(serinus_find_error("nothing like this", 17) == NULL);
  CHECK(serinus_find_error(NULL, 0) == NULL);

  /* A dense view. */
  const int64_t shape[3] = {2, 3, 4};
  const serinus_tensor t = serinus_dense(NULL, SERINUS_F32, 3, shape);
  CHECK(t.rank == 3 && t.strides[0] == 12 && t.strides[1] == 4 && t.strides[2] == 1);
  CHECK(t.device_type == SERINUS_CPU);
  CHECK(serinus_dense(NULL, SERINUS_F32, 99, shape).rank == 99); /* refused later, not read here */
  return failures();
}
