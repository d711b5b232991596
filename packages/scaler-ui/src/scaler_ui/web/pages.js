let here;
// Makes tables sortable by keyboard, and keeps the link of the current page visible on narrow screens. Slots are not used, because every update replaces them, and the focus is lost.
new MutationObserver(() => {
  for (const head of document.querySelectorAll('th.sortable')) {
    head.tabIndex = 0;
    const order = head.classList.contains('sort-desc') ? 'descending' : 'ascending';
    head.ariaSort = head.classList.contains('sorted') ? order : 'none';
  }
  for (const row of document.querySelectorAll('.opens tbody tr')) row.tabIndex = 0;
  const link = document.querySelector('nav [aria-current]');
  if (link && link !== here) link.parentElement.scrollLeft = link.offsetLeft - link.parentElement.clientWidth / 2;
  here = link;
}).observe(document.documentElement, {childList: true, subtree: true, attributeFilter: ['class', 'aria-current']});
addEventListener('keydown', (event) => {
  if (['Enter', ' '].includes(event.key) && event.target.matches('th.sortable, .opens tbody tr')) {
    event.preventDefault();
    event.target.click();
  }
});
// What draws charts is big: it comes while the reader looks at the first page, not when the first chart is wanted.
addEventListener('load', () => import('nicegui-echart'));
