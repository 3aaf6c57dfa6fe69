// Light, dark, or as the system has it. Runs before the page is drawn, so that nothing flashes.
(() => {
  'use strict';
  const kThemes = ['auto', 'light', 'dark'];
  const stored = () => {
    try {
      return localStorage.getItem('serinus-theme');
    } catch {
      return null;  // storage may be switched off
    }
  };
  let theme = kThemes.includes(stored()) ? stored() : 'auto';

  const show = () => {
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById('theme');
    if (button) button.textContent = `Theme: ${theme}`;
    document.dispatchEvent(new Event('themechange'));
  };
  show();
  document.addEventListener('DOMContentLoaded', () => {
    show();
    document.getElementById('theme').addEventListener('click', () => {
      theme = kThemes[(kThemes.indexOf(theme) + 1) % kThemes.length];
      try {
        localStorage.setItem('serinus-theme', theme);
      } catch {
        // then it holds for this page
      }
      show();
    });
  });
})();
