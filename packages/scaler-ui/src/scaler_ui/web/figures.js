// Numbers with names.
export default {
  template: `<div class="figures">
    <div v-for="(text, name) in figures" :key="name" class="panel figure"
      ><div class="name">{{ name }}</div><div class="value" :data-testid="name">{{ text }}</div></div>
  </div>`,
  props: { figures: Object },
};
